"""Checkpoints: what one plan saved, another one continues; the same run twice is the same to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from runnable_models import Loader
from running_plans import GPT2, SKIP, TIMEOUT_S, cut, placed

from planner.errors import InputError, RunError
from planner.runtime import run
from planner.runtime.checkpoint import INDEX, read_index, state_dict
from planner.workload import ReplicaMode

RELATIVE = 1e-5


def test_a_checkpoint_continues_under_another_plan_with_the_same_losses(tmp_path: Path) -> None:
    loader, first, second = Loader("gpt2_model"), tmp_path / "first", tmp_path / "second"
    whole = run(cut(GPT2, (3,)), loader, num_steps=4, learning_rate=0.01, timeout_s=TIMEOUT_S, save=second)
    run(cut(GPT2, (2,)), loader, num_steps=2, learning_rate=0.01, timeout_s=TIMEOUT_S, save=first)
    assert read_index(first).step == 2
    other = placed(GPT2, (1, 3, 5), "zb_v")
    rest = run(other, loader, num_steps=2, learning_rate=0.01, check=True, timeout_s=TIMEOUT_S, load=first, save=first)
    assert rest.losses == pytest.approx(whole.losses[2:], rel=RELATIVE)
    assert rest.gradient_max_difference is not None
    assert rest.gradient_max_difference < RELATIVE
    assert read_index(first).step == 4
    assert sorted(path.name for path in first.iterdir()) == [INDEX, *sorted(read_index(first).parts)]
    ended, wanted = state_dict(first), state_dict(second)
    assert ended.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(ended[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_an_ordinary_state_dict(tmp_path: Path) -> None:
    run(cut(GPT2, (3,)), Loader("gpt2_model"), num_steps=1, timeout_s=TIMEOUT_S, save=tmp_path)
    model = Loader("gpt2_model")(2).runnable.model
    before = model.get_parameter("model.lm_head.weight").detach().clone()
    model.load_state_dict(state_dict(tmp_path), strict=True)
    assert not torch.equal(model.get_parameter("model.lm_head.weight"), before)


def test_two_runs_with_one_seed_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    plan = cut(SKIP, (2,), (2, 1), num_microbatches=3, replica_mode=ReplicaMode.DEALT)
    losses, weights = [], []
    for name in ("a", "b"):
        report = run(plan, Loader("skip_model"), num_steps=3, seed=5, timeout_s=TIMEOUT_S, save=tmp_path / name)
        losses.append(report.losses)
        weights.append(state_dict(tmp_path / name))
    assert losses[0] == losses[1]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_folders_without_a_checkpoint_are_named(tmp_path: Path) -> None:
    plan, loader = cut(SKIP, (2,)), Loader("skip_model")
    with pytest.raises(InputError, match="holds no checkpoint"):
        run(plan, loader, load=tmp_path)
    (tmp_path / INDEX).write_text('{"step": 1, "parts": ["step-1.stage-0.pt"]}')
    with pytest.raises(InputError, match=r"lacks the part 'step-1\.stage-0\.pt'"):
        run(plan, loader, load=tmp_path)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(InputError, match="cannot be read"):
        run(plan, loader, load=tmp_path)
    with pytest.raises(InputError, match="cannot be made"):
        run(plan, loader, save=tmp_path / INDEX)


def test_a_checkpoint_of_another_model_is_named(tmp_path: Path) -> None:
    run(cut(SKIP, (2,)), Loader("skip_model"), num_steps=1, timeout_s=TIMEOUT_S, save=tmp_path)
    with pytest.raises((InputError, RunError), match=r"lacks '.*', which is"):
        run(cut(GPT2, (2,)), Loader("gpt2_model"), num_steps=1, timeout_s=TIMEOUT_S, load=tmp_path)
