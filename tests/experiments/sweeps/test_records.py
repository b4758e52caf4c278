"""Columns of records: a mean and its deviation."""

import math

from experiments.sweeps.records import field, mean_fields, own_table


def test_a_mean_and_its_deviation_are_one_column_in_text_and_two_in_csv():
    records = [
        {"k": 1, "epsilon": 1234.567, "epsilon_deviation": 0.25},
        {"k": 2, "epsilon": 2.0, "epsilon_deviation": math.nan},  # a single value
        {"k": 3},
    ]
    table = own_table("title", [field("k", "k"), *mean_fields("epsilon", "mean")], records, gap=" ")
    rows = [line.split(maxsplit=1) for line in table.text.splitlines()[-3:]]
    assert rows == [["1", "1,234.57 (0.25)"], ["2", "2.00"], ["3"]]
    lines = table.csv.decode().splitlines()
    assert lines == ["k,epsilon,epsilon_deviation", "1,1234.57,0.25", "2,2,nan", "3,,"]
