"""Static analysis of a script's source, for the running loop, `elastane doctor` and `verify`.

carrying       what the script carries from turn to turn into the result
across_epochs  what it carries from epoch to epoch
launcher       variables that a script may ask a launcher for
names          names in a syntax tree
places         which files are the script's, their syntax trees, places in them as messages name them

Pure: needs neither torch nor a master.
"""

from elastane.script_source.carrying import (
    HYPERPARAMETERS,
    IN_EPOCHS,
    IN_TURNS,
    Carried,
    Kind,
    Role,
    carried_attributes,
    carried_values,
    cure,
    loop_at,
    turn_counter,
)

__all__ = [
    "HYPERPARAMETERS",
    "IN_EPOCHS",
    "IN_TURNS",
    "Carried",
    "Kind",
    "Role",
    "carried_attributes",
    "carried_values",
    "cure",
    "loop_at",
    "turn_counter",
]
