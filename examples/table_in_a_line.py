"""From a table with words and missing numbers to a calibrated ensemble in one line: `python examples/table_in_a_line.py`."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import argosy

table, y = load_breast_cancer(return_X_y=True, as_frame=True)
table["size"] = np.where(table.pop("mean radius") > 14, "large", "small")
table = table.mask(np.random.RandomState(0).rand(*table.shape) < 0.05)  # a twentieth of all values is missing
labels = np.where(y == 1, "benign", "malignant")
x, x_new, known, unknown = train_test_split(table, labels, random_state=0)

if __name__ == "__main__":
    classifier = argosy.Classifier(argosy.tabular(epochs=20), random_state=0).fit(x, known)
    for row in classifier.ensemble_.scores:
        print(f"{row['network']}: weight {row['weight']:.2f}, negative log-likelihood {row['nll']:.3f}")
    print(f"accuracy of samples that are new: {classifier.score(x_new, unknown):.4f}")
