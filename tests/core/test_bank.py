from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dept.core.bank import MemoryBank

KNN = json.loads((Path(__file__).parents[1] / "fixtures" / "official_losses.json").read_text())["knn"]


def filled(features: Tensor, probabilities: Tensor) -> MemoryBank:
    bank = MemoryBank(len(features), features.shape[1], probabilities.shape[1])
    bank.write(features, probabilities)
    return bank


def uncapped(features: Tensor, probabilities: Tensor, queries: Tensor, neighbours: int) -> tuple[MemoryBank, Tensor]:
    """The same vote in a bank so large that `neighbours` is not capped.

    An extra axis keeps the added entries away: queries have a large +1 there, the additions point to -1, real
    entries have 0. That scales a query's cosines to the real entries by one positive factor: same order.
    """
    extra = 5 * neighbours
    length = queries.norm(dim=1, keepdim=True)
    lifted = torch.cat([queries, 3 * length], dim=1)
    near = torch.cat([features, torch.zeros(len(features), 1)], dim=1)
    far = torch.zeros(extra, near.shape[1])
    far[:, -1] = -1.0
    nonsense = torch.full((extra, probabilities.shape[1]), 99.0)
    return filled(torch.cat([near, far]), torch.cat([probabilities, nonsense])), lifted


def one_hot(entries: str) -> tuple[Tensor, Tensor]:
    """Letters as features; the probability column stores the letter's number so that slots can be read back."""
    numbers = torch.tensor([float("abcdefghij".index(c)) for c in entries])
    angles = numbers * 0.3
    return torch.stack([angles.cos(), angles.sin()], 1), numbers[:, None]


def letters(bank: MemoryBank) -> str:
    return "".join("abcdefghij"[int(n)] for n in bank.probabilities[:, 0])


def test_fifo_by_hand() -> None:
    bank = MemoryBank(5, 2, 1)
    for entries in ("ab", "cd", "ef"):
        bank.write(*one_hot(entries))
    assert letters(bank) == "fbcde" and bank.pointer == 1 and len(bank) == 5


def test_fifo_before_it_is_full() -> None:
    bank = MemoryBank(5, 2, 1)
    bank.write(*one_hot("ab"))
    assert len(bank) == 2 and bank.pointer == 2


def test_a_batch_larger_than_the_bank_keeps_the_newest() -> None:
    bank = MemoryBank(3, 2, 1)
    bank.write(*one_hot("abcde"))
    assert sorted(letters(bank)) == ["c", "d", "e"] and len(bank) == 3
    bank.write(*one_hot("f"))
    assert sorted(letters(bank)) == ["d", "e", "f"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(1, 10), min_size=1, max_size=8))
def test_the_bank_always_holds_the_newest_entries(size: int, batches: list[int]) -> None:
    bank, everything = MemoryBank(size, 2, 1), []
    for count in batches:
        numbers = torch.arange(len(everything), len(everything) + count, dtype=torch.float32)
        everything += numbers.tolist()
        bank.write(torch.stack([numbers + 1, numbers], 1), numbers[:, None])
    kept = bank.probabilities[: len(bank), 0].tolist()
    assert sorted(kept) == everything[-size:] and len(bank) == min(size, len(everything))


def test_vote_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5**0.5, 0.5**0.5]])
    probabilities = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.4, 0.6]])
    query = torch.tensor([[1.0, 0.1]])
    for k, expected in ((2, [0.7, 0.3]), (3, [0.466667, 0.533333])):
        bank, lifted = uncapped(features, probabilities, query, k)
        voted = bank.vote(lifted, k)
        assert torch.allclose(voted, torch.tensor([expected]), atol=1e-6)
    assert int(voted.argmax()) == 1


def test_vote_agrees_with_the_released_code() -> None:
    queries, features = torch.tensor(KNN["queries"]), torch.tensor(KNN["bank"])
    bank, lifted = uncapped(features, torch.tensor(KNN["probs"]), queries, KNN["k"])
    voted = bank.vote(lifted, KNN["k"])
    assert torch.allclose(voted, torch.tensor(KNN["voted"]), atol=1e-6)
    assert voted.argmax(dim=1).tolist() == KNN["labels"]


def test_vote_is_capped_at_a_fifth_of_the_filled_slots() -> None:
    features, probabilities = torch.randn(12, 4), torch.rand(12, 3)
    queries = torch.randn(3, 4)
    bank = MemoryBank(100, 4, 3)
    bank.write(features, probabilities)
    cosines = torch.nn.functional.cosine_similarity(queries[:, None], features[None], dim=-1)
    for row, voted in zip(cosines, bank.vote(queries, 10), strict=True):
        best = sorted(range(12), key=lambda i: -float(row[i]))[:2]  # 12 // 5
        assert torch.allclose(voted, probabilities[best].mean(0), atol=1e-6)


def test_vote_in_a_bank_of_one() -> None:
    bank = filled(torch.ones(1, 4), torch.tensor([[0.2, 0.8]]))
    assert torch.allclose(bank.vote(torch.randn(3, 4), 10), torch.tensor([[0.2, 0.8]]).expand(3, 2))


@settings(max_examples=25, deadline=None)
@given(st.floats(-6, 6), st.integers(0, 10**6))
def test_vote_does_not_depend_on_scale(spread: float, seed: int) -> None:
    """Every entry and every query may have a length of its own."""
    generator = torch.Generator().manual_seed(seed)
    features, queries = torch.randn(20, 6, generator=generator), torch.randn(4, 6, generator=generator)
    probabilities = torch.rand(20, 3, generator=generator)
    lengths = (spread * torch.rand(20, 1, generator=generator)).exp()
    plain = filled(features, probabilities).vote(queries, 3)
    scaled = filled(lengths * features, probabilities).vote(lengths[:4] * queries, 3)
    assert torch.allclose(plain, scaled, atol=1e-6)


def test_refill_replaces_everything_in_a_seeded_random_order() -> None:
    bank = MemoryBank(6, 2, 1)
    bank.write(*one_hot("ghi"))
    bank.refill(*one_hot("abcdef"), torch.Generator().manual_seed(3))
    first = letters(bank)
    assert sorted(first) == list("abcdef") and first != "abcdef" and len(bank) == 6
    bank.refill(*one_hot("abcdef"), torch.Generator().manual_seed(3))
    assert letters(bank) == first
    norms = bank.features.norm(dim=1)
    assert torch.allclose(norms, torch.ones(6))
    # Features stay with their entries.
    expected, _ = one_hot(first)
    assert torch.allclose(bank.features, expected, atol=1e-6)


def test_refill_of_a_smaller_set_forgets_the_rest() -> None:
    bank = MemoryBank(10, 2, 1)
    bank.write(*one_hot("abcdefghij"))
    bank.refill(*one_hot("abcde"))
    assert len(bank) == 5 and bank.vote(torch.tensor([[1.0, 0.0]]), 1).item() == 0.0


def test_state_round_trip_goes_on_alike() -> None:
    bank = MemoryBank(5, 2, 1)
    bank.write(*one_hot("abcde"))
    bank.write(*one_hot("fg"))
    state = {name: tensor.clone() for name, tensor in bank.state_dict().items()}
    other = MemoryBank(5, 2, 1)
    other.load_state_dict(state)
    for one in (bank, other):
        one.write(*one_hot("hi"))
    assert letters(bank) == letters(other) and bank.pointer == other.pointer
    assert int(state["ring"][0]) == 2  # the loaded state itself was not written to
    assert not torch.equal(state["probabilities"], other.probabilities)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        MemoryBank(0, 2, 1)
    with pytest.raises(ValueError, match="empty"):
        MemoryBank(3, 2, 1).vote(torch.ones(1, 2), 1)


def slow_nearest(bank: MemoryBank, slot: int, k: int) -> list[int]:
    rows = bank.features[: len(bank)].tolist()
    cosines = [(sum(a * b for a, b in zip(rows[slot], row, strict=True)), other) for other, row in enumerate(rows)]
    return [other for _, other in sorted(cosines, reverse=True) if other != slot][:k]


def test_nearest_and_mutual_equal_the_slow_search() -> None:
    generator = torch.Generator().manual_seed(3)
    bank = MemoryBank(40, 4, 3)
    bank.write(torch.randn(30, 4, generator=generator), torch.rand(30, 3, generator=generator))
    slots = torch.tensor([4, 0, 29, 17])
    near, mutual = bank.mutual(slots, 5)
    assert near.tolist() == bank.nearest(slots, 5).tolist() == [slow_nearest(bank, int(slot), 5) for slot in slots]
    expected = [[int(i) in slow_nearest(bank, j, 5) for j in row] for i, row in zip(slots, near.tolist(), strict=True)]
    assert mutual.tolist() == expected and 0 < int(mutual.sum()) < mutual.numel()
    assert bank.nearest(slots, 99).shape == (4, 6)  # a fifth of 30


def test_an_entry_is_not_its_own_neighbour() -> None:
    bank = MemoryBank(4, 2, 1)
    (slot,) = bank.write(*one_hot("a"))
    near, mutual = bank.mutual(slot[None], 3)
    assert near.shape == mutual.shape == (1, 0)
    bank.write(*one_hot("b"))
    near, mutual = bank.mutual(torch.tensor([0, 1]), 3)
    assert near.tolist() == [[1], [0]] and mutual.all()


def test_write_tells_the_slots_and_put_overwrites_them() -> None:
    bank = MemoryBank(3, 2, 1)
    assert bank.write(*one_hot("ab")).tolist() == [0, 1]
    assert bank.write(*one_hot("cd")).tolist() == [2, 0]
    bank.put(torch.tensor([1]), *one_hot("e"))
    assert letters(bank) == "dec" and (bank.pointer, len(bank)) == (1, 3)
    assert bank.write(*one_hot("fghij")).tolist() == [1, 2, 0] and letters(bank) == "jhi"
