"""``gnnplace train``: the policy, by Lightning's own command line."""

from __future__ import annotations

import sys

from gnnplace.cli.commands import ROWS

USAGE = f"""usage: gnnplace train {{fit,validate,test,predict,sweep}} --config RECIPE [OPTION...]
       gnnplace train export CKPT -o FOLDER

{ROWS["commands"]["train"]["summary"]}

  fit       trains; checkpoints, figures and the network go to the folder that the recipe names
  validate  places the validation problems with a checkpoint
  test      places the test problems with a checkpoint
  predict   places the test problems with a checkpoint and writes predictions.csv: predicted seconds
            of each problem, beside those of the best heuristic
  sweep     trains many times with hyper-parameters that Optuna proposes, keeps the best
  export    writes the network of a .ckpt file to a folder; place --checkpoint takes either

Recipes: any YAML file of trainers/; a second --config overrides the first, and so does an option
such as --model.lr 1e-4 or --trainer.max_steps 100. --print_config shows what comes of all of them.
gnnplace train fit --help lists every option; gnnplace train sweep --help those of the sweep.
"""
LIGHTNING = ("fit", "validate", "test", "predict")
NO_BARS = "--trainer.enable_progress_bar=false"


def run(arguments: list[str], *, quiet: bool = False) -> int:
    """Hand the arguments to Lightning's command line, which parses them itself.

    Args:
        arguments: The arguments after ``gnnplace train``.
        quiet: Without progress bars.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    from gnnplace.train import main

    if quiet and arguments[0] in LIGHTNING:
        bars = [NO_BARS]
    else:
        bars = []
    main([*arguments, *bars])
    return 0
