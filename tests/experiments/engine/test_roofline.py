"""The roofline's arithmetic, and the table's and JSON's form."""

import json

import pytest

from experiments.engine import roofline
from experiments.engine.accelerators import Chip, Described
from experiments.engine.ahead import DP_FEDAVG, DP_SGD, CompiledTraining, TrainingProgram, programs

CHIP = Chip("a chip", {"float32": 1e12, "tf32": 2e12, "bf16": 4e12}, 16e9, 1e11)
FOUR = Described("chips:2x2", CHIP, 4)
STEP = CompiledTraining(TrainingProgram(DP_SGD, "convnet"), 12.3, 500, 10**9, 7 * 10**6, 4e8, 1e7, 1_250_000)


@pytest.mark.parametrize(
    ("flops", "moved", "precision", "rate", "by"),
    [
        (4e8, 1e7, "float32", 4 * 2500, "FLOPs"),
        (4e8, 1e7, "bf16", 4 * 10_000, "FLOPs"),
        (4e8, 1e8, "bf16", 4 * 1000, "bytes"),
        (0, 1e8, "float32", 4 * 1000, "bytes"),
    ],
)
def test_the_lower_of_two_limits_holds(flops, moved, precision, rate, by):
    program = TrainingProgram(DP_SGD, "convnet", precision)
    found = roofline.limit(STEP._replace(program=program, flops=flops, moved=moved), FOUR)
    assert found.by == by and found.rate == pytest.approx(rate)


def test_time_follows_from_the_limit_and_a_share_of_it():
    assert roofline.seconds(STEP, FOUR) == pytest.approx(125)
    assert roofline.seconds(STEP, FOUR, 0.4) == pytest.approx(312.5)


def test_the_table_has_a_row_a_program_in_80_columns():
    rows = [STEP._replace(program=program, units=10**9) for program in programs("float32")]
    rows[1] = CompiledTraining(rows[1].program, failure="RESOURCE_EXHAUSTED: " + 100 * "x")
    lines = roofline.as_text([(FOUR, rows)]).splitlines()
    assert max(map(len, lines)) == 80
    assert sum(line.startswith("convnet") for line in lines) == 2  # of DP-SGD and of DP-FedAvg
    assert [line.split()[0] for line in lines if "compile" in line] == ["model-steps", "client-updates"]


def test_a_row_says_what_was_found():
    line = roofline.as_text([(FOUR, [STEP])]).splitlines()[-1]
    assert line.split() == ["convnet", "12", "s", "500", "7M", "400M", "10M", "10k", "FLOPs", "2.1m", "5.2m"]


def test_json_has_every_number_or_why_there_is_none():
    failed = CompiledTraining(TrainingProgram(DP_FEDAVG, "lenet"), failure="no")
    one, other = json.loads(roofline.as_json([(FOUR, [STEP, failed])]))["programs"]
    assert one["units_per_second_at_most"] == 10_000 and one["bytes_a_model"] == 7_000_000
    assert (one["compiles"], one["unit"], one["limited_by"]) == (True, "model-steps", "FLOPs")
    assert other == {
        "device": "chips:2x2",
        "mechanism": "dp_fedavg",
        "model": "lenet",
        "precision": "float32",
        "compiles": False,
        "failure": "no",
    }


def test_a_plan_assumes_a_share_of_the_limit():
    probe, said = roofline.probe(STEP, FOUR), roofline.not_timed(STEP, FOUR)
    assert probe.model_step == pytest.approx(1 / 4000) and (probe.chunk, probe.compilation) == (500, 12.3)
    assert (said.device, said.by, said.share) == ("chips:2x2", "FLOPs", 0.4)
    assert said.model_step == pytest.approx(1 / 10_000)
