"""A run as one page that needs no network, and a picture of the page: `python examples/picture.py runs/ensemble`.

The picture needs Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    run = Path(sys.argv[1]).resolve()
    subprocess.run([sys.executable, "-m", "argosy", "report", str(run), "--html"], check=True)
    page, picture = run / "report.html", run / "report.png"
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is not None:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1440,2400", f"--screenshot={picture}"]
        subprocess.run([chromium, *flags, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
        print(f"Written: {picture}")
