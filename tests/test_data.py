"""Tests of `argosy.data`: datasets from folders of images, tables, lines of JSON, weights and features of a network."""

import csv
import datetime
import json
import math
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from pandas._libs.parsers import STR_NA_VALUES
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import argosy
from argosy.data.tables import MISSING_MARKS
from argosy.errors import StudyError
from argosy.errors.labels import labels_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, (kind, shape) in enumerate([("cat", (40, 60)), ("cat", (64, 32)), ("dog", (32, 32))]):
        (tmp_path / kind).mkdir(exist_ok=True)
        pixels = np.full((*shape, 3), 40 * (number + 1), np.uint8)
        pixels[:, : shape[1] // 2] = 0
        Image.fromarray(pixels).save(tmp_path / kind / f"{number}.png")
    (tmp_path / "cat" / "notes.txt").touch()
    return tmp_path


def test_a_folder_of_images_is_classes_by_name_and_squares_of_bytes(photos: Path) -> None:
    found = argosy.data.image_folder(photos, size=16)
    assert (found.classes, found.labels, len(found)) == (("cat", "dog"), (0, 0, 1), 3)
    image, label = found[2]
    assert (image.shape, image.dtype, label) == ((3, 16, 16), torch.uint8, 1)
    assert image[:, :, 0].eq(0).all() and image[:, :, 15].eq(120).all()
    assert found[0][0].shape == found[1][0].shape == (3, 16, 16)


@pytest.mark.parametrize("file", ["a.png", "little.tif", "big.tif", "a.ppm"])
def test_images_of_16_bits_are_scaled_to_8(file: str, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    path, pixels = tmp_path / "cat" / file, np.array([[0, 300], [32768, 65535]], np.uint16)
    if path.suffix == ".ppm":  # Pillow opens these in mode I, 32 bits
        path.write_bytes(b"P5 2 2 65535\n" + pixels.astype(">u2").tobytes())
    else:
        Image.fromarray(pixels.astype(">u2") if file == "big.tif" else pixels).save(path)
    image, _ = argosy.data.image_folder(tmp_path, size=2)[0]
    assert image.tolist() == [[[0, 1], [128, 255]]] * 3


@pytest.mark.parametrize(("dtype", "words"), [(np.int32, "32-bit numbers"), (np.float32, "floats")])
def test_images_of_an_unknown_range_are_refused(dtype: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.ones((4, 4), dtype)).save(tmp_path / "cat" / "a.tif")
    with pytest.raises(StudyError, match=rf"cat/a\.tif are {words} .* Convert the image to 8 or 16 bits\."):
        argosy.data.image_folder(tmp_path, size=4)[0]


def test_hidden_files_and_folders_are_no_classes_and_no_images(photos: Path) -> None:
    before = argosy.data.image_folder(photos, size=8)
    (photos / ".ipynb_checkpoints").mkdir()
    (photos / "cat" / "._1.jpg").write_bytes(b"no image")
    assert argosy.data.image_folder(photos, size=8) == before


def test_a_leading_tilde_is_the_home_directory(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(photos.parent))
    assert argosy.data.image_folder(f"~/{photos.name}", size=8) == argosy.data.image_folder(photos, size=8)
    (photos / "table.csv").write_text("a,kind\n1,x\n2,y\n")
    assert argosy.data.table(f"~/{photos.name}/table.csv", target="kind").arrays[1].tolist() == [0, 1]
    (photos / "lines.jsonl").write_text('{"a": 1}\n')
    assert len(argosy.data.json_lines(f"~/{photos.name}/lines.jsonl", make=dict)) == 1


def test_where_there_is_no_image_the_layout_is_said(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"the folder does not exist\. Pass a folder that has one folder per class"):
        argosy.data.image_folder(tmp_path / "there", size=8)
    (tmp_path / "cat").mkdir()
    with pytest.raises(StudyError, match="it has 1 folders and no images"):
        argosy.data.image_folder(tmp_path, size=8)


def test_a_validation_set_that_lacks_a_class_numbers_the_others_as_the_training_set_does(photos: Path) -> None:
    val = photos / "val"
    (val / "dog").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(val / "dog" / "9.png")
    train = photos / "train"
    train.mkdir()
    for kind in ("cat", "dog"):
        (photos / kind).rename(train / kind)
    both = argosy.data.image_folder(train, size=8)
    alone = argosy.data.image_folder(val, size=8)
    with pytest.raises(
        StudyError, match=r"Data\.val has 1 classes \(dog\) and Data\.train has 2 \(cat, dog\), so the same number"
    ):
        argosy.Data(train=both, val=alone)
    found = argosy.data.image_folder(val, size=8, classes=both.classes)
    assert found.labels == (1,)
    argosy.Data(train=both, val=found)
    with pytest.raises(StudyError, match=r"has the folder 'dog', which is not one of the classes cat\."):
        argosy.data.image_folder(val, size=8, classes=["cat"])


ROWS = [["height", "colour", "kind"], ["1.5", "red", "b"], ["2", "blue", "a"], ["2.5", "red", "b"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(ROWS)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("given", ["file", "frame", "dict"])
def test_a_table_is_numbers_and_a_column_for_each_word(given: str, file: Path) -> None:
    frame = pandas.read_csv(file)
    source: Any = {"file": file, "frame": frame, "dict": {name: frame[name].to_numpy() for name in frame}}[given]
    found = argosy.data.table(source, target="kind")
    assert found.features == ("height", "colour=blue", "colour=red")
    assert found.inputs.tolist() == [[1.5, 0, 1], [2, 1, 0], [2.5, 0, 1]]
    assert (found.classes, found.targets.tolist()) == (("a", "b"), [1, 0, 1])
    assert argosy.data.table(source, target="height").targets.tolist() == [1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: rows[2].__setitem__(1, ""), "column 'colour' has no value in 1 of 3 rows, the first in row 1"),
        (lambda rows: rows[2].__setitem__(0, ""), "column 'height' has no value in 1 of 3 rows"),
        (lambda rows: rows[3].pop(), "line 4 of .* has 2 values, but the table has 3 columns"),
        (lambda rows: rows.__delitem__(slice(1, 4)), "the source has 0 rows"),
        (
            lambda rows: rows[0].__setitem__(1, "height"),
            "2 columns have the name 'height'. Rename or remove all but one",
        ),
        (lambda rows: rows[0].__setitem__(2, "kinds"), r"unknown column 'kind' \(did you mean 'kinds'\?\)"),
    ],
)
def test_what_a_table_lacks_is_named(change: Any, words: str, tmp_path: Path) -> None:
    rows = [list(row) for row in ROWS]
    change(rows)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(StudyError, match=words):
        argosy.data.table(tmp_path / "t.csv", target="kind")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            np.array(["2026-11-25", "2026-11-26"], "datetime64[D]"),
            "holds datetime.date\\(2026, 11, 25\\) of type date, which is neither",
        ),
        (np.array([1.0, np.inf]), "infinite values, the first in row 1"),
    ],
)
def test_what_is_neither_a_number_nor_a_word_is_refused(column: Any, words: str) -> None:
    with pytest.raises(
        StudyError,
        match=f"table: column 'x' {'has' if 'infinite' in words else 'holds'}.*{words.removeprefix('holds ')}",
    ):
        argosy.data.table({"x": column, "y": np.array([0, 1])}, target="y")


TRAIN = "colour,floor,size,kind\nred,1,1.5,dog\nblue,G,2,cat\nred,2,2.5,eel\n"


def two_tables(tmp_path: Path, val: str, given: str = "file") -> list[Any]:
    """Return `TRAIN` and another table, as files or as DataFrames."""
    for name, text in (("train", TRAIN), ("val", val)):
        (tmp_path / f"{name}.csv").write_text(text)
    files = [tmp_path / "train.csv", tmp_path / "val.csv"]
    return files if given == "file" else [pandas.read_csv(file) for file in files]


@pytest.mark.parametrize("given", ["file", "frame"])
def test_a_second_table_has_the_features_and_classes_of_the_first(given: str, tmp_path: Path) -> None:
    """A table read with `like=` has the features and classes of that table.

    Its columns are in another order and one is new, a word is new, its floors are all numbers, and a class is missing.
    """
    val = "kind,name,size,floor,colour\neel,x,3,2,green\ndog,,1,1,red\n"
    first, second = two_tables(tmp_path, val, given)
    train = argosy.data.table(first, target="kind")
    found = argosy.data.table(second, target="kind", like=train)
    assert found.features == train.features
    assert train.features == ("colour=blue", "colour=red", "floor=1", "floor=2", "floor=G", "size")
    assert found.inputs.tolist() == [[0, 0, 0, 1, 0, 3], [0, 1, 1, 0, 0, 1]]
    assert (found.classes, found.targets.tolist()) == (("cat", "dog", "eel"), [2, 1])
    asked = {"colour": ["red"], "floor": ["G"], "size": [2.0]}  # rows to predict have no target
    asked_table = argosy.data.table(asked, target="kind", like=train)
    assert (asked_table.inputs.tolist(), asked_table.targets.tolist()) == ([[0, 1, 0, 0, 1, 2]], [])
    again = argosy.data.table(first, target="kind", like=found)
    assert (again.inputs.tolist(), again.targets.tolist()) == (train.inputs.tolist(), train.targets.tolist())


def test_a_second_table_has_the_kind_of_target_of_the_first(tmp_path: Path) -> None:
    words = argosy.data.table({"x": [1.0, 2.0, 3.0], "y": ["1", "2", "b"]}, target="y")
    (tmp_path / "val.csv").write_text("x,y\n1,2\n2,1\n")
    assert argosy.data.table(tmp_path / "val.csv", target="y", like=words).targets.tolist() == [1, 0]
    numbers = argosy.data.table({"x": [1.0, 2.0], "y": [5, 9]}, target="y", target_is="numbers")
    assert argosy.data.table(tmp_path / "val.csv", target="y", like=numbers).targets.tolist() == [2.0, 1.0]
    whole = argosy.data.table({"x": [1.0, 2.0], "y": [2, 7]}, target="y")
    assert argosy.data.table({"x": [1.0], "y": [7.0]}, target="y", like=whole).targets.tolist() == [1]


@pytest.mark.parametrize(
    ("val", "words"),
    [
        (
            "colour,floor,size,kind\nred,1,1.5,fox\n",
            r"'kind' is 'fox' in row 0, .* 3 classes .* \('cat', 'dog', 'eel'\)",
        ),
        ("colour,size,kind\nred,1.5,dog\n", "unknown column 'floor'"),
        ("colour,floor,size,kind\nred,1,large,dog\n", "column 'size' has 'large' in row 0; it must be a number"),
        ("colour,floor,size,kind\nNA,1,2,dog\n", "column 'colour' has no value in 1 of 1 rows"),
        ("colour,floor,size,kind\nred,1,2,?\n", "column 'kind' has no value in 1 of 1 rows"),
    ],
)
def test_what_the_first_table_has_otherwise_is_refused(val: str, words: str, tmp_path: Path) -> None:
    first, second = two_tables(tmp_path, val)
    train = argosy.data.table(first, target="kind")
    with pytest.raises(StudyError, match=words):
        argosy.data.table(second, target="kind", like=train)


def test_a_number_is_refused_in_a_column_of_words_of_the_first_table(tmp_path: Path) -> None:
    train = argosy.data.table(*two_tables(tmp_path, TRAIN)[:1], target="kind")
    codes = pandas.read_csv(tmp_path / "val.csv").assign(colour=[0, 1, 0])
    with pytest.raises(
        StudyError, match="column 'colour' has 0 in row 0, but words such as 'blue' in the table of like="
    ):
        argosy.data.table(codes, target="kind", like=train)
    zips = {"zip": np.array([10115, 80331]), "y": np.array([0.5, 1.5])}
    named = argosy.data.table(zips, target="y", words=["zip"])
    found = argosy.data.table({"zip": np.array([80331, 1]), "y": np.array([0.5, 1.5])}, target="y", like=named)
    assert found.inputs.tolist() == [[0, 1], [0, 0]]


def test_like_must_be_a_table_and_excludes_other_settings(tmp_path: Path) -> None:
    first, second = two_tables(tmp_path, TRAIN)
    train = argosy.data.table(first, target="kind")
    with pytest.raises(StudyError, match=r"like is 'train\.csv'; it must be a table that was read before"):
        argosy.data.table(second, target="kind", like="train.csv")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="Remove target_is= and words="):
        argosy.data.table(second, target="kind", like=train, words=["floor"])


PRICES = [250000, 310000, 250000]


@pytest.mark.parametrize("prices", [PRICES, [Decimal(price) for price in PRICES], [str(price) for price in PRICES]])
def test_whole_numbers_are_outputs_where_that_is_said(prices: list[Any]) -> None:
    source = {"x": np.arange(3.0), "price": np.array(prices)}
    assert len(argosy.data.table(source, target="price").classes) == 2
    found = argosy.data.table(source, target="price", target_is="numbers")
    assert (found.classes, found.targets.dtype, found.targets.tolist()) == ((), np.float32, PRICES)


def test_numbers_are_classes_where_that_is_said() -> None:
    source = {"x": np.arange(3.0), "y": np.array([1.0, 0.5, 1.0])}
    found = argosy.data.table(source, target="y", target_is="classes")
    assert (found.classes, found.targets.tolist()) == ((0.5, 1.0), [1, 0, 1])
    with pytest.raises(StudyError, match=r"table: target_is is 'number' \(did you mean 'numbers'\?\)"):
        argosy.data.table(source, target="y", target_is="number")  # type: ignore[arg-type]


def test_words_are_no_numbers_whatever_is_said(tmp_path: Path) -> None:
    file = numbers_and(tmp_path, "-")
    with pytest.raises(StudyError, match="column 'x' has '-' in row 30; it must be a number"):
        argosy.data.table(file, target="x", target_is="numbers")
    assert len(argosy.data.table(file, target="x", target_is="classes").classes) == 31


def numbers_and(tmp_path: Path, *values: str) -> Path:
    """Write a table of 30 rows with numbers and a row for each value; returns its path."""
    rows = [*(f"{n}.5,{n % 2}" for n in range(30)), *(f"{value},1" for value in values)]
    (tmp_path / "t.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    return tmp_path / "t.csv"


@pytest.mark.parametrize("mark", ["NA", "?", "null", "N/A", "nan", "None", "", "#N/A N/A"])
@pytest.mark.parametrize("target", ["x", "y"])
def test_a_mark_of_a_missing_value_is_one(mark: str, target: str, tmp_path: Path) -> None:
    source = numbers_and(tmp_path, mark)
    for read in (partial(argosy.data.table, target=target), lambda source: argosy.data.columns(source, "x")):
        with pytest.raises(StudyError, match="column 'x' has no value in 1 of 31 rows, the first in row 30"):
            read(source)


def test_marks_are_those_of_pandas() -> None:
    assert set(STR_NA_VALUES) | {"?"} == MISSING_MARKS | {""}


@pytest.mark.parametrize("target", ["x", "y"])
@pytest.mark.parametrize("given", ["file", "frame", "objects"])
def test_a_few_words_among_numbers_are_refused(given: str, target: str, tmp_path: Path) -> None:
    file = numbers_and(tmp_path, "-", "12;5")
    frame = pandas.read_csv(file)
    objects = {"x": np.array([*map(float, frame.x[:30]), "-", "12;5"], object), "y": frame.y.to_numpy()}
    source: Any = {"file": file, "frame": frame, "objects": objects}[given]
    with pytest.raises(
        StudyError, match=r"column 'x' has numbers in 30 of 32 rows, but '-' in row 30\. Fix .* words=\['x'\]"
    ):
        argosy.data.table(source, target=target)


def test_words_are_words_though_most_look_like_numbers_or_like_none(tmp_path: Path) -> None:
    file = numbers_and(tmp_path, "G", "NA")
    found = argosy.data.table(file, target="y", words=["x"])
    assert {"x=0.5", "x=29.5", "x=G", "x=NA"} < {*found.features} and len(found.features) == 32
    assert argosy.data.table(file, target="x", words=["x"]).classes[-2:] == ("G", "NA")
    zips = argosy.data.table({"zip": np.array([10115, 80331, 10115]), "y": np.arange(3)}, target="y", words=["zip"])
    assert (zips.features, zips.inputs.tolist()) == (("zip=10115", "zip=80331"), [[1, 0], [0, 1], [1, 0]])
    with pytest.raises(StudyError, match="unknown column 'zips'"):
        argosy.data.table(file, target="y", words=["zips"])
    with pytest.raises(StudyError, match="column 'x' has no value in 1 of 31 rows"):
        argosy.data.table(numbers_and(tmp_path, ""), target="y", words=["x"])


@pytest.mark.parametrize("numbers", [9, 10, 18, 20])
def test_a_column_of_words_may_have_numbers(numbers: int) -> None:
    source = {"x": np.array([*map(str, range(numbers)), "a", "b"], object), "y": np.arange(numbers + 2)}
    if numbers == 20:
        with pytest.raises(StudyError, match="has numbers in 20 of 22 rows"):
            argosy.data.table(source, target="y")
    else:
        assert len(argosy.data.table(source, target="y").features) == numbers + 2


def test_a_name_in_each_row_is_no_feature() -> None:
    names = np.array([f"name {n}" for n in range(1001)], object)
    with pytest.raises(StudyError, match="column 'x' has 1001 different words in 1001 rows"):
        argosy.data.table({"x": names, "y": np.arange(1001) % 2}, target="y")


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_file_is_read_as_spreadsheets_and_pandas_write_it(between: str, tmp_path: Path) -> None:
    rows = ["", "kind", " size", ""], ["0", "b", "1.5", ""], [], ["1", "a", "2.5", ""], []
    text = "\ufeff" + "\r\n".join(between.join(row) for row in rows)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    found = argosy.data.table(tmp_path / "t.csv", target="kind")
    assert (found.features, found.inputs.tolist(), found.classes) == (("size",), [[1.5], [2.5]], ("a", "b"))
    (tmp_path / "t.csv").write_text("\ufeffkind,x\na,1\n\nb\n", encoding="utf-8")
    with pytest.raises(StudyError, match=r"line 4 of .* has 1 values"):
        argosy.data.table(tmp_path / "t.csv", target="kind")
    (tmp_path / "t.csv").write_text("größe,kind\n1,a\n", encoding="latin-1")
    with pytest.raises(StudyError, match=r"cannot be read: 'utf-8' codec .*Pass a \.csv file in UTF-8"):
        argosy.data.table(tmp_path / "t.csv", target="kind")


@pytest.mark.parametrize("written", ["{:,}", "${}", "{}%", "0,{}"])
def test_numbers_as_people_write_them_are_no_words(written: str) -> None:
    source = {"x": [written.format(900 * n) for n in range(1, 31)], "y": np.arange(30) % 2}
    for target in ("x", "y"):
        with pytest.raises(
            StudyError, match=r"column 'x' has numbers in 30 of 30 rows, but .* Fix every value that is not a plain"
        ):
            argosy.data.table(source, target=target)
    assert len(argosy.data.table(source, target="y", words=["x"]).features) == 30


def test_dates_of_a_file_are_refused_as_dates_of_a_frame_are() -> None:
    source = {"when": ["2026-11-25", "2026-11-26"], "age": ["30-39", "40-49"], "y": [0, 1]}
    with pytest.raises(StudyError, match="column 'when' holds '2026-11-25' of type str, which is neither"):
        argosy.data.table(source, target="y")
    assert len(argosy.data.table(source, target="y", words=["when"]).features) == 4


def test_numbers_that_a_frame_holds_as_objects_are_numbers() -> None:
    mixed = pandas.DataFrame([[n, "ab"[n % 2], n % 11, n + 0.5] for n in range(12)]).astype(object)
    found = argosy.data.table(mixed, target="2")
    assert (found.features, found.inputs[1].tolist()) == (("0", "1=a", "1=b", "3"), [1, 0, 1, 1.5])
    assert (found.classes, found.targets.tolist()) == ((*range(11),), [*range(11), 0])
    assert argosy.data.columns(mixed, "0", "3")[0].tolist() == [*range(12)]


@pytest.mark.parametrize(
    "days",
    [np.arange(3).astype("datetime64[ns]"), np.arange(3).astype("timedelta64[ns]"), [datetime.date(2024, 1, 1)] * 3],
)
def test_a_target_of_dates_or_durations_is_refused(days: Any) -> None:
    frame = {"x": np.zeros(3), "y": days}
    with pytest.raises(StudyError, match="table: target 'y' holds dates or durations"):
        argosy.data.table(frame, target="y")
    assert len(argosy.data.table(frame, target="y", target_is="classes").classes) == len(set(days))


def test_decimals_are_numbers() -> None:
    prices, counts = map(np.array, ([Decimal("1.5"), Decimal(2)], [Decimal(7), Decimal(3)]))
    found = argosy.data.table({"price": prices, "count": counts}, target="price")
    assert (found.features, found.classes, found.targets.tolist()) == (("count",), (), [1.5, 2])
    found = argosy.data.table({"price": prices, "count": counts}, target="count")
    assert (found.inputs.tolist(), found.classes, found.targets.tolist()) == ([[1.5], [2]], (3, 7), [1, 0])
    whole = np.array([Decimal("2.00"), Decimal("1.0E+20")])  # of prices all may be whole, and few fit into 64 bits
    found = argosy.data.table({"price": whole, "count": counts}, target="price")
    assert (found.classes, found.targets.tolist()) == ((), [2, np.float32(1e20)])


def test_flags_of_numpy_among_objects_are_numbers() -> None:
    flags = np.array([np.True_, np.False_], object)
    assert argosy.data.table({"member": flags, "y": [1.5, 2]}, target="y").inputs.tolist() == [[1], [0]]


def test_what_has_no_columns_is_no_table() -> None:
    for read in (partial(argosy.data.table, target="y"), partial(argosy.data.columns)):
        with pytest.raises(StudyError, match="source is an instance of ndarray, which has no named columns"):
            read(np.zeros((3, 2)))


def test_what_python_alone_takes_for_a_number_is_a_word(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1_000,0\n2_000,1\n")
    assert argosy.data.table(tmp_path / "t.csv", target="y").features == ("x=1_000", "x=2_000")


def test_columns_of_an_arrow_table_are_arrays_and_numbers_in_one_piece_are_not_copied(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images, kinds = np.arange(60, dtype=np.float32), np.arange(10) % 3
    squares = arrow.FixedSizeListArray.from_arrays(arrow.FixedSizeListArray.from_arrays(arrow.array(images), 2), 3)
    whole = arrow.table({"image": squares, "kind": kinds, "holed": [None, *range(9)], "word": ["a", "b"] * 5})
    image, kind = argosy.data.columns(whole, "image", "kind")
    assert image.tolist() == images.reshape(10, 3, 2).tolist()
    assert np.shares_memory(kind, whole["kind"].chunk(0).to_numpy())
    assert np.shares_memory(image, whole["image"].chunk(0).flatten().flatten().to_numpy())
    assert argosy.Data(arrays=(image, kind)).arrays is not None
    parquet.write_table(whole, tmp_path / "t.parquet", row_group_size=4)
    for source in (tmp_path / "t.parquet", arrow.concat_tables([whole[:4], whole[4:]]), whole.to_batches()[0]):
        found = argosy.data.columns(source, "image", "kind")
        assert [column.tolist() for column in found] == [image.tolist(), kind.tolist()]
    table = argosy.data.table(whole.drop_columns(["image", "holed"]), target="kind")
    assert (table.features, table.classes) == (("word=a", "word=b"), (0, 1, 2))
    with pytest.raises(StudyError, match="column 'holed' has no value in 1 of 10 rows, the first in row 0"):
        argosy.data.columns(whole, "holed")
    with pytest.raises(StudyError, match=r"unknown column 'kinds' \(did you mean 'kind'\?\)"):
        argosy.data.columns(tmp_path / "t.parquet", "kinds")
    (tmp_path / "t.parquet").write_text("no")
    for read in (partial(argosy.data.table, target="kind"), argosy.data.columns):
        with pytest.raises(StudyError, match=r"t\.parquet cannot be read: .*Parquet file size is 2 bytes"):
            read(tmp_path / "t.parquet")


def test_lists_of_equal_length_in_an_arrow_table_are_rows_whatever_their_type() -> None:
    """Lists whose type has no length are what pandas writes to Parquet files; datasets of Hugging Face have extension types."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pixels = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    holed = arrow.ExtensionArray.from_storage(tensors.type, arrow.array([[None] * 6] * 4, tensors.storage.type))
    table = arrow.table({"lists": arrow.array(pixels.tolist())[1:], "tensors": tensors[1:], "holed": holed[1:]})
    for column in argosy.data.columns(table, "lists", "tensors"):
        assert column.tolist() == pixels[1:].tolist()
    assert [column.shape for column in argosy.data.columns(table[:0], "tensors")] == [(0, 2, 3)]
    with pytest.raises(StudyError, match="column 'holed' has no value in 3 of 3 rows"):
        argosy.data.columns(table, "holed")
    [varying] = argosy.data.columns(arrow.table({"x": [[1], [1, 2]]}), "x")
    with pytest.raises(StudyError, match="has dtype object"):
        argosy.Data(arrays=(varying,))


def test_missing_words_of_an_arrow_dictionary_are_missing() -> None:
    """NumPy reads them as the last word where the column is in chunks, as all columns of tables and Parquet files are."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    words = arrow.chunked_array([arrow.array(["a", None, "b"]).dictionary_encode()])
    with pytest.raises(StudyError, match="column 'word' has no value in 1 of 3 rows, the first in row 1"):
        argosy.data.table(arrow.table({"word": words, "y": [0, 1, 0]}), target="y")
    with pytest.raises(StudyError, match="y has no value for 1 of its 3 samples"):
        labels_of("y", words)


def test_columns_of_what_is_no_arrow_table() -> None:
    x, y = argosy.data.columns({"x": [1.0, 2.0], "y": np.arange(2)}, "x", "y")
    assert (x.tolist(), y.tolist()) == ([1.0, 2.0], [0, 1])


@pytest.mark.parametrize(
    "column",
    [
        pandas.Series([1.0, None, 2.0]),
        pandas.Series([1, None, 2], dtype="Int64"),
        pandas.Series(["a", None, "b"], dtype="string"),
        pandas.Series(["a", "", "b"]),
        pandas.Series(pandas.to_datetime(["2026-01-01", None, "2026-01-02"])),
        np.array([[1.0, 2.0], [1.0, np.nan], [3.0, 4.0]]),
        np.array([np.zeros(2), None, np.zeros(3)], object),
    ],
)
def test_a_missing_value_of_a_column_is_refused_whatever_its_type(column: Any) -> None:
    source = pandas.DataFrame({"x": column}) if isinstance(column, pandas.Series) else {"x": column}
    with pytest.raises(StudyError, match="column 'x' has no value in 1 of 3 rows, the first in row 1"):
        argosy.data.columns(source, "x")


def test_all_columns_with_missing_values_are_named_at_once() -> None:
    frame = {"age": [1.0, math.nan, math.nan], "size": [1, 2, 3], "deck": ["a", "b", ""], "kind": ["x", "y", "x"]}
    with pytest.raises(StudyError) as refused:
        argosy.data.table(frame, target="kind")
    assert "column 'age' has no value in 2 of 3 rows, the first in row 1; column 'deck' has no value in 1 of 3" in str(
        refused.value
    )
    many = {f"x{number}": [1.0, math.nan] for number in range(14)} | {"kind": ["x", "y"]}
    with pytest.raises(StudyError, match=r"'x9' has no value in 1 of 2 rows, the first in row 1; so do 4 more columns"):
        argosy.data.table(many, target="kind")


def test_a_frame_with_two_columns_of_a_name_is_refused() -> None:
    frame = pandas.DataFrame([[1.0, 2.0, 3.0]], columns=["x", "x", "y"])
    for read in (partial(argosy.data.table, frame, target="y"), partial(argosy.data.columns, frame, "x")):
        with pytest.raises(StudyError, match="2 columns have the name 'x'"):
            read()
    assert argosy.data.columns(frame, "y")[0].tolist() == [3.0]


def test_lines_of_json_are_samples_by_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"n": n, "text": "é" * n}) for n in range(4)) + "\n\n")
    found = argosy.data.json_lines(path, make=lambda record: (torch.tensor(float(record["n"])), len(record["text"])))
    assert len(found) == 4
    assert [found[n] for n in (3, 0)] == [(torch.tensor(3.0), 3), (torch.tensor(0.0), 0)]
    with pytest.raises(StudyError, match="cannot be read: No such file"):
        argosy.data.json_lines(tmp_path / "b.jsonl", make=dict)


def test_weights_are_multiplicities() -> None:
    assert argosy.data.by_weight([1, 1, 2], samples=8) == [0, 0, 1, 1, 2, 2, 2, 2]
    assert sorted(np.bincount(argosy.data.by_weight([1, 1, 1], samples=4))) == [1, 1, 2]
    assert argosy.data.by_weight([0, 1], samples=2) == [1, 1]
    with pytest.raises(StudyError, match="not all 0"):
        argosy.data.by_weight([0, 0], samples=2)


def test_weights_of_sorted_samples_leave_out_no_site() -> None:
    # The common samples come from nine sites with a hundred each, one site after another.
    rare, common = range(100), range(100, 1000)
    weights = [1 / len(rare)] * len(rare) + [1 / len(common)] * len(common)
    with pytest.warns(
        UserWarning, match=r"^by_weight: 400 of 1000 .* samples=1000 are below 1. samples=1800 includes"
    ) as told:
        found = argosy.data.by_weight(weights, samples=1000)
    assert told[0].filename == __file__
    sites = np.bincount(np.asarray(found) // 100, minlength=10)
    assert sites[0] == 500
    assert sites[1:].min() > 40, sites
    with pytest.warns(UserWarning, match="by_weight"):
        assert found == argosy.data.by_weight(weights, samples=1000), "every process must choose the same samples"
    assert set(range(1000)) == set(argosy.data.by_weight(weights, samples=1800))


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index


class Tapped(nn.Module):
    """A network that returns the output of an inner layer, which a forward hook stores in `kept`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.kept = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), dict[str, torch.Tensor]()
        self.layers[0].register_forward_hook(lambda layer, inputs, output: self.kept.update(inner=output))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layers(x)
        return self.kept["inner"]


def test_a_hook_of_a_frozen_trunk_keeps_what_the_trunk_computes() -> None:
    network = Tapped()
    before = network(torch.ones(1, 4))
    x, _ = argosy.data.features(Pictures(), network)[5]
    assert network.kept["inner"] is before, "features() must not run the caller's network itself"
    assert torch.equal(x, network.layers[0](torch.full((1, 4), 5.0))[0])


def test_features_are_the_networks_outputs_in_place_of_inputs() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    found = argosy.data.features(Pictures(), network)
    assert network.training and all(weight.requires_grad for weight in network.parameters()), (
        "the caller's network must not change"
    )
    x, y = found[5]
    assert torch.equal(x, network.eval()(torch.full((1, 4), 5.0))[0])
    assert (y, len(found), x.requires_grad) == (5, 6, False)
    with pytest.raises(StudyError, match="must be a network"):
        argosy.data.features(Pictures(), len)  # type: ignore[arg-type]


def test_a_query_is_told_to_be_read_and_a_column_of_polars_is_read() -> None:
    class Query(dict[str, Any]):
        columns = ("a", "y")

        def collect(self) -> None: ...

    class Series(list[float]):
        null_count = 0

        def to_arrow(self) -> Any:
            return np.array(self)

    member = argosy.Member("one", model=partial(nn.Linear, 2, 2), optimizer=torch.optim.SGD, batch_size=2)
    for read in (
        partial(argosy.data.table, target="y"),
        lambda query: argosy.data.columns(query, "a"),
        lambda query: argosy.fit(query, [0, 1], member),
        lambda query: argosy.Classifier().fit(query, [0, 1]),
    ):
        with pytest.raises(
            StudyError, match=r"is an instance of Query, whose rows are not in memory\. Pass its collect\(\)\."
        ):
            read(Query())
    assert argosy.data.columns({"a": Series([1.0, 2.0])}, "a")[0].tolist() == [1.0, 2.0]


def test_a_masked_value_in_a_table_is_missing() -> None:
    """A table of Astropy has `filled` too, and need not have a mask."""

    class Table(dict[str, Any]):
        columns = ("a", "y")

        def filled(self) -> None: ...

    masked = np.ma.array([1.0, 2.0, 99999.0], mask=[False, False, True])
    rows = np.ma.array([[1.0, 2.0], [3.0, 4.0], [5.0, 99999.0]], mask=[[0, 0], [0, 0], [0, 1]])
    for column in (masked, rows):
        with pytest.raises(StudyError, match="column 'a' has no value in 1 of 3 rows, the first in row 2"):
            argosy.data.columns(Table(a=column), "a")
    with pytest.raises(StudyError, match="column 'a' has no value in 1 of 3 rows, the first in row 2"):
        argosy.data.table(Table(a=masked, y=[0, 1, 0]), target="y")
    whole = argosy.data.table(Table(a=np.ma.array([1.0, 2.0]), y=[0, 1]), target="y")
    assert whole.arrays[0].tolist() == [[1.0], [2.0]]
