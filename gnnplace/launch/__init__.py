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
    from gnnplace.launch.from_plan import make_launch_plan, stage_layers
    from gnnplace.launch.importing import (
        complete_launch_plan,
        find_model_name,
        make_captured_spec,
        with_missing,
    )
    from gnnplace.launch.launch_plan import LaunchPlan
    from gnnplace.launch.registry import (
        SCRIPTS,
        find_launcher_of_file,
        is_launch_file,
        read_launch_file,
    )
    from gnnplace.launch.scripted import ScriptedSearch, make_scripted_plan
    from gnnplace.launch.searching import (
        LaunchAnswer,
        price_launch_plan,
        with_priced_schedule,
    )
    from gnnplace.launch.side_by_side import (
        launcher_plans,
        make_file_setting,
        price_file,
        price_plan_in_words,
        price_words,
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
    "complete_launch_plan",
    "convert_launch_file",
    "export_plan",
    "find_launcher_of_file",
    "find_model_name",
    "is_launch_file",
    "launcher_plans",
    "make_captured_spec",
    "make_file_setting",
    "make_launch_plan",
    "make_scripted_plan",
    "price_file",
    "price_launch_plan",
    "price_plan_in_words",
    "price_words",
    "read_launch_file",
    "stage_layers",
    "start_command",
    "with_missing",
    "with_priced_schedule",
    "words_data",
    "words_lines",
    "write_nearest",
]

__getattr__, __dir__ = lazy_names(__name__)
