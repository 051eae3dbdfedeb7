"""Five seeds as in a paper: a figure of the mean with its interval, and a table of all values: `python examples/curves.py`.

It reads the run of `python examples/ensemble.py`; needs pandas and matplotlib: ``pip install "argosy[report]"``.
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
