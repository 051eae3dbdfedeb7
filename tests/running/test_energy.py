"""The meter adds up what counters counted, over their wraps and gaps."""

from pathlib import Path

from argosy.running.energy import Counter, Meter


def test_counters_wrap_and_may_fall_silent() -> None:
    values = iter([90.0, 95.0, 10.0, None, 30.0])

    def read() -> float:
        value = next(values)
        if value is None:
            raise OSError("gone for a moment")
        return value

    meter = Meter({"package-0": Counter(read=read, wraps_at=100.0)})
    told = []
    for _ in range(5):
        meter.look()
        told.append(meter.told.get("package-0"))
    assert told == [0.0, 5.0, 20.0, 20.0, 40.0]


def test_packages_are_found_where_they_may_be_read(tmp_path: Path) -> None:
    for number, energy in enumerate(("5000000\n", "")):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"package-{number}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
        (zone / "energy_uj").write_text(energy)
    (tmp_path / "intel-rapl:0:0").mkdir()
    meter = Meter.here(gpus=False, powercap=tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("7500000\n")
    meter.look()
    assert meter.told == {"package-0": 2.5}
