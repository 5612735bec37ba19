"""A supervisor in a separate process, with the stand-in rank: argv is the plan file, the pod, the keys, the state folder."""

import asyncio
import logging
import sys
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_runner.supervisor import SupervisorSettings, serve

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
plan_file, pod, keys, state = sys.argv[1:]
plan = Plan.model_validate_json(Path(plan_file).read_text())
node = next(entry.node for entry in plan.ranks if entry.pod == pod)
stand_in = str(Path(__file__).with_name("stand_in_rank.py"))
asyncio.run(
    serve(
        SupervisorSettings(
            plan=plan,
            pod=pod,
            node=node,
            keys_folder=Path(keys),
            state_folder=Path(state),
            command=lambda group, epoch, rank: [
                *(sys.executable, stand_in, "thunderfleet_runner.rank", "--group", group, "--rank", str(rank))
            ],
            gateway=False,
            benchmark=False,
        )
    )
)
