"""Static analysis of a script's source, for the running loop, `elastane doctor` and `verify`.

carrying       what a loop carries from turn to turn into the result
across_epochs  what it carries from epoch to epoch
launcher       variables that a script may ask a launcher for
epoch_body     runs the body of a loop over epochs
body           runs the loop's body, and what it calls of the script, in the abstract
callees        which function a call runs, and what its names stand for
attributes     what a class carries along in its attributes
loops          the loops of a file: `for`, comprehensions, map
options        conditions that the script's options settle
words          what methods and functions do, by their names
names          names in a syntax tree
places         which files are the script's, their syntax trees, places in them as messages name them

Pure: needs neither torch nor a master.
"""

from elastane.script_source.attributes import ClassSource, carried_attributes, reported_attributes, with_bases
from elastane.script_source.body import HYPERPARAMETERS, Kind, Role
from elastane.script_source.carrying import IN_EPOCHS, IN_TURNS, Carried, carried_values, cure
from elastane.script_source.loops import loop_at, turn_counter

__all__ = [
    "HYPERPARAMETERS",
    "IN_EPOCHS",
    "IN_TURNS",
    "Carried",
    "ClassSource",
    "Kind",
    "Role",
    "carried_attributes",
    "carried_values",
    "cure",
    "loop_at",
    "reported_attributes",
    "turn_counter",
    "with_bases",
]
