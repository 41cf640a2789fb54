"""Launch files: plans as the files of the launchers that people have, and back.

`read_launch_file` reads a file of Megatron-LM, DeepSpeed, torchtitan and others as a `LaunchPlan`,
the words that all launchers share; `export_plan`, `write_nearest` and `convert_launch_file` write
one. `price_launch_plan` and `LauncherSearch` price and search plans from a model's sizes at the
prices of a launcher's framework, and `launcher_plans` finds each launcher's fastest plan.

Called by `explaining`, `planning`, `report` and the command line. It never runs a script that it
reads, and needs no torch to read, write or search. What a launcher has no key for is reported in
one line and not written.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.launch.exporting import export_plan
    from gnnplace.launch.from_plan import launch_plan_of, stage_layers
    from gnnplace.launch.importing import (
        captured_spec,
        completed,
        named_model,
        with_missing,
    )
    from gnnplace.launch.launch_plan import LaunchPlan
    from gnnplace.launch.registry import (
        SCRIPTS,
        is_launch_file,
        launcher_of_file,
        read_launch_file,
    )
    from gnnplace.launch.scripted import ScriptedSearch, scripted_plan
    from gnnplace.launch.searching import (
        LaunchAnswer,
        price_launch_plan,
        priced_spec,
    )
    from gnnplace.launch.side_by_side import (
        launcher_plans,
        price_file,
        price_plan_in_words,
        price_words,
        setting_of_file,
        start_command,
    )
    from gnnplace.launch.words import words_data, words_lines
    from gnnplace.launch.writing import LaunchFile, convert_launch_file, write_nearest

__all__ = [
    "SCRIPTS",
    "LaunchAnswer",
    "LaunchFile",
    "LaunchPlan",
    "ScriptedSearch",
    "captured_spec",
    "completed",
    "convert_launch_file",
    "export_plan",
    "is_launch_file",
    "launch_plan_of",
    "launcher_of_file",
    "launcher_plans",
    "named_model",
    "price_file",
    "price_launch_plan",
    "price_plan_in_words",
    "price_words",
    "priced_spec",
    "read_launch_file",
    "scripted_plan",
    "setting_of_file",
    "stage_layers",
    "start_command",
    "with_missing",
    "words_data",
    "words_lines",
    "write_nearest",
]

__getattr__, __dir__ = lazy_names(__name__)
