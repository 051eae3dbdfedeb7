"""What a paper shows of five seeds: the mean with its interval as a figure, and all values as a table: `python examples/curves.py`.

It reads the run that `python examples/ensemble.py` leaves; needs pandas and matplotlib: ``pip install "argosy[report]"``.
"""

import argosy

if __name__ == "__main__":
    report = argosy.load("runs/ensemble")
    axes = report.plot("val_loss", by="configuration", band="ci")
    axes.set_yscale("log")
    axes.figure.savefig("curves.pdf")

    curves = report.curves()
    curves.to_csv("curves.csv", index=False)
    last = curves[(curves["metric"] == "val_loss") & (curves["epoch"] == curves["epoch"].max())]
    print(last.groupby("configuration")["value"].agg(["mean", "std", "count"]))
