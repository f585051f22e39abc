"""Missing values of tables: where they may be, and what stands for them, against pandas' figures of all rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from loading import everything, load, source
from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.dataset import Dataset
from peer.learning.data.samples import InMemory, Names, Rule, Standardisation, imputation_of, typical_values
from peer.learning.data.shard import own_shard

RULES: dict[str, Rule] = {"age": "mean", "crp": "median", "smokes": "category"}
LIES = (float("nan"), float("inf"), float("-inf"))
NAMES = Names.imputing(["age", "weight", "crp", "smokes"], RULES)


def frame(rows: int, seed: int, empty: str = "") -> pandas.DataFrame:
    draw = np.random.default_rng(seed)
    values = draw.lognormal(2, 1, (rows, 4)).astype(np.float32)
    values[draw.random((rows, 4)) < [0.3, 0, 0.2, 0.5]] = np.nan
    return pandas.DataFrame(values, columns=NAMES.raw).assign(**({empty: np.float32("nan")} if empty else {}))


def samples(of: pandas.DataFrame) -> InMemory:
    x = NAMES.with_flags(torch.from_numpy(of.to_numpy(np.float32, copy=True)))
    return InMemory(x, torch.zeros(len(x), dtype=torch.int64))


def together(parts: list[pandas.DataFrame]) -> Tensor:
    """The weighted mean as it results from the ring, in float32."""
    total = torch.zeros(2 * len(RULES))
    for part in parts:
        total += typical_values(samples(part), NAMES) * len(part)
    return total / sum(map(len, parts))


def test_the_values_are_those_of_all_peers_that_have_some() -> None:
    parts = [frame(300, 1), frame(40, 2, empty="crp"), frame(1, 3), frame(170, 4, empty="smokes")]
    whole = pandas.concat(parts)
    known = [part["crp"].dropna() for part in parts]
    medians = sum(one.median() * len(one) for one in known if len(one)) / sum(map(len, known))
    fill = {"age": whole["age"].mean(), "crp": medians, "smokes": whole["smokes"].mean()}
    wanted = whole.fillna(fill).assign(told=whole["smokes"].isna())
    imputation = imputation_of(together(parts), NAMES)
    assert np.allclose(imputation(samples(whole).x), wanted.to_numpy(np.float32), rtol=1e-5)


@pytest.mark.parametrize("lie", LIES)
def test_one_that_is_admitted_believes_no_value_that_is_none(lie: float) -> None:
    told = torch.cat([torch.zeros(5), torch.ones(5), torch.tensor([1, lie, 2])])
    with pytest.raises(FailedError, match="values for missing ones, as found with the other peers, are of no use"):
        Standardisation.from_vector(told, NAMES)


def test_one_peers_median_is_the_median() -> None:
    alone = frame(300, 1)
    imputed = imputation_of(typical_values(samples(alone), NAMES), NAMES).imputed
    assert imputed is not None
    assert imputed.tolist()[2] == pytest.approx(alone["crp"].median())


def test_what_goes_to_disk_and_to_others_comes_back() -> None:
    imputed = imputation_of(together([frame(300, 1)]), NAMES).imputed
    standard = Standardisation(torch.arange(5.0), torch.arange(1.0, 6), imputed)
    assert len(standard.vector) == 13
    back = Standardisation.from_vector(standard.vector, NAMES)
    for one, other in ((back.means, standard.means), (back.deviations, standard.deviations), (back.imputed, imputed)):
        assert one is not None
        assert other is not None
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_a_column_without_any_value_is_refused() -> None:
    with pytest.raises(InputError, match="column `crp` has no value in any training sample"):
        imputation_of(together([frame(30, 1, empty="crp"), frame(40, 2, empty="crp")]), NAMES)


@pytest.mark.parametrize(
    ("share", "total"),
    [(-0.25, 1), (1.25, 1), (1e30, 1), (1e-30, 1e30), *((one, 1) for one in LIES), *((0.5, one) for one in LIES)],
)
def test_a_liars_shares_and_values_are_refused(share: float, total: float) -> None:
    with pytest.raises(FailedError, match=r"for missing ones, as found with the other peers, are of no use; .* a peer"):
        imputation_of(torch.tensor([share, 0.5, 0.5, total, 1, 1]), NAMES)


def table(tmp_path: Path, text: str, **keys: Any) -> Dataset:
    (tmp_path / "t.csv").write_text(text)
    return load("csv", path=tmp_path / "t.csv", **keys)


def in_file_order(dataset: Dataset) -> list[list[float]]:
    """All samples, by the first column, which numbers them."""
    rows = torch.cat([next(part.in_order(99)).inputs for part in everything(dataset)]).tolist()
    return sorted(rows)


GAPS = 'row,n,flag,d,label\n1,7,True,NA,a\n2,,False,null,b\n3,8,,"1,5",a\n4,9,True,,b\n'
nan = pytest.approx(float("nan"), nan_ok=True)


def test_gaps_stay_until_they_are_filled(tmp_path: Path) -> None:
    dataset = table(tmp_path, GAPS, impute="mean", decimal=",")
    assert in_file_order(dataset) == [[1, 7, 1, nan], [2, nan, 0, nan], [3, 8, nan, 1.5], [4, 9, 1, nan]]
    assert dataset.names == Names(
        ("row", "n", "flag", "d"), ("a", "b"), dict.fromkeys(("row", "n", "flag", "d"), "mean")
    )
    told = "of 4 rows, these lack a value, which is imputed: 1 in `n` (mean), 1 in `flag` (mean), 3 in `d` (mean)"
    assert dataset.remarks == (told,)
    for few in (*dataset.few(), everything(dataset)[0].first(9)):
        assert not next(few.in_order(9)).inputs.isnan().any(), "a dry pass has no gaps"
    assert not everything(dataset)[0].pair().inputs.isnan().any()


def test_a_category_has_a_column_even_where_nothing_is_missing(tmp_path: Path) -> None:
    keys = {"impute": {"n": "category"}, "columns": ["row", "n"]}
    dataset = table(tmp_path, GAPS, **keys)
    assert dataset.names.columns == ("row", "n", "n missing")
    assert in_file_order(dataset) == [[1, 7, 0], [2, nan, 1], [3, 8, 0], [4, 9, 0]]
    whole = table(tmp_path, GAPS.replace("2,,", "2,5,"), **keys)
    assert whole.names == dataset.names
    assert in_file_order(whole) == [[1, 7, 0], [2, 5, 0], [3, 8, 0], [4, 9, 0]]
    assert not whole.remarks


def test_rows_that_lack_what_is_not_imputed_may_be_left_out(tmp_path: Path) -> None:
    keys = {"impute": {"n": "mean"}, "columns": ["row", "n", "d"], "decimal": ",", "when_missing": "drop"}
    assert in_file_order(table(tmp_path, GAPS + '5,,,"2,5",b\n6,6,,1,\n', **keys)) == [[3, 8, 1.5], [5, nan, 2.5]]


def test_a_parquet_files_gaps_are_the_same(tmp_path: Path) -> None:
    rows = {"row": [1, 2, 3], "n": [None, 2, None], "flag": [True, None, False], "d": [None] * 3, "label": [0, 1, 0]}
    pandas.DataFrame(rows).astype({"n": "Int64"}).to_parquet(tmp_path / "t.parquet")
    dataset = load("parquet", path=tmp_path / "t.parquet", impute="median")
    assert in_file_order(dataset) == [[1, nan, 1, nan], [2, 2, nan, nan], [3, nan, 0, nan]]


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        (GAPS, {}, "column 'd' has no value in line 2; fill it in, replace such values by `impute`, or write `when_"),
        (GAPS, {"impute": {"d": "mean"}}, "column 'n' has no value in line 3"),
        (GAPS + "5,1,True,1,\n", {"impute": "mean"}, "'label' has no value in line 6; fill it in, or write `when_miss"),
        (GAPS, {"impute": "mean", "group": "n"}, "column 'n' has no value in line 3; fill it in, or write"),
        (GAPS, {"impute": {"N": "mean"}}, "`impute` has `N`, which is not learnt from; did you mean `n`?"),
        (GAPS, {"impute": {"label": "mean"}}, "`impute` has `label`, which is not learnt from; known: d, flag"),
        (GAPS, {"impute": {"d": "mean"}, "columns": ["n"]}, "`impute` has `d`, which is not learnt from"),
        (GAPS + "5,x,True,1,a\n", {"impute": "mean"}, "column 'n' holds 'x' in line 6, which is not a number"),
        (GAPS + "5,inf,True,1,a\n", {"impute": "mean"}, "column 'n' holds inf in line 6, which is not finite"),
        ("n,n missing,label\n1,2,a\n", {"impute": "category"}, "would add a column `n missing`, and there is one"),
        (GAPS, {"impute": "mean", "transforms": ["torch.nn:Identity"]}, "`impute` is for tables in memory"),
    ],
)
def test_what_cannot_be_imputed_is_told(text: str, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        table(tmp_path, text, **{"decimal": ","} | keys)


def test_what_is_no_table_in_memory_is_told(tmp_path: Path) -> None:
    pandas.DataFrame({"a": [1.0, None], "label": [0, 1]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match="streamed, all rows and columns are taken; leave out `columns`, `impute` and"):
        load("parquet", path=tmp_path / "t.parquet", stream=True, impute="mean")
    with pytest.raises(InputError, match="digits: `impute` is for tables in memory"):
        load("digits", impute="mean")


def test_the_rule_is_the_federations(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GAPS)
    plain, federation = (source("csv", path=tmp_path / "t.csv", decimal=",", impute=how) for how in (None, "category"))
    with pytest.raises(InputError, match="`impute` in a peer's own data would not hold for the other peers"):
        own_shard(federation, plain)
    shard = own_shard(plain, federation)
    assert shard.names.raw == ("row", "n", "flag", "d")
    filled = shard.standardised(imputation_of(typical_values(shard.train, shard.names), shard.names))
    assert not any(next(part.in_order(9)).inputs.isnan().any() for part in (filled.train, filled.test))
