"""Published methods as settings of the configuration: ``AsyncGRPOConfig(**METHODS["dapo"], ...)``.

Their formulas average over all groups, also those of equal rewards, so they count here; DAPO takes others
in place of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS: Mapping[str, Mapping[str, Any]] = {
    # arXiv 2402.03300, eq. 3. Its KL term is beta=0.04.
    "grpo": {
        "loss": "grpo",
        "advantage": "group_normalised",
        "loss_aggregation": "rollout",
        "equal_groups": "count",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
    },
    # arXiv 2503.20783: neither the length of a rollout nor the spread of a group's rewards changes what it weighs.
    "dr_grpo": {
        "loss": "grpo",
        "advantage": "group_centred",
        "loss_aggregation": "constant",
        "equal_groups": "count",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
    },
    # arXiv 2503.14476, eq. 8; the reward side is longrein.rollout.overlong.
    "dapo": {
        "loss": "grpo",
        "advantage": "group_normalised",
        "loss_aggregation": "group",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "equal_groups": "replace",
    },
    # arXiv 2507.18071, eq. 5, bounds of its section 5.1.
    "gspo": {
        "loss": "gspo",
        "advantage": "group_normalised",
        "loss_aggregation": "rollout",
        "equal_groups": "count",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    # arXiv 2506.13585, eq. 4 and 5; no lower bound. The paper does not publish its upper one: a weight of 5 is common.
    "cispo": {
        "loss": "cispo",
        "advantage": "group_normalised",
        "loss_aggregation": "group",
        "equal_groups": "count",
        "epsilon": 1.0,
        "epsilon_high": 4.0,
    },
    # arXiv 2402.14740. On-policy; needs max_staleness=0 or an importance_sampling.
    "rloo": {
        "loss": "reinforce",
        "advantage": "leave_one_out",
        "loss_aggregation": "rollout_sum",
        "equal_groups": "count",
    },
    # arXiv 2501.03262, the variant with a group baseline.
    "reinforce_plus_plus": {
        "loss": "grpo",
        "advantage": "batch_normalised",
        "loss_aggregation": "token",
        "equal_groups": "count",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
    },
}
"""Name -> fields of :class:`~longrein.train.grpo_config.AsyncGRPOConfig`."""
