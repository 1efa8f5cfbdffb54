from pathlib import Path

from triolet.loadtest.machine import busy_share, machine


def test_the_machine_names_its_processor_and_telling_instructions(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A Processor\ncpu family\t: 26\nmodel\t\t: 2\nflags\t: fpu avx2 avx512f\n\n"
        "processor\t: 1\nmodel name\t: another\n"
    )
    found = machine(tmp_path)
    assert found.cpu == "A Processor (family 26, model 2)"
    assert found.instructions == ("avx2", "avx512f")
    assert found.cores >= 1
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd0c\n")
    assert machine(tmp_path).instructions == ("asimd", "asimddp")


def test_what_others_use_is_a_share(tmp_path: Path) -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal: unchanged counters are an idle machine."""
    (tmp_path / "stat").write_text("cpu  10 0 10 100 5 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    assert busy_share(0.0, tmp_path) == 0.0
    assert 0.0 <= busy_share(0.01) <= 1.0
