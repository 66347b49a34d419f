"""Static analysis of a script's source, for the running loop, `elastane doctor` and `verify`.

carrying       values that a loop carries from turn to turn and that affect the result
across_epochs  the same from epoch to epoch
epoch_body     abstract interpreter for the body of a loop over epochs
body           abstract interpreter for the loop's body and the script's functions that it calls
callees        resolves a call to the script's function, and that function's names
attributes     state that a class keeps in its attributes
loops          finds the loops of a file: `for`, comprehensions, map
options        evaluates conditions on the script's options
words          tables of known methods and functions
names          helpers for names in a syntax tree
places         the script's files, their syntax trees, and locations as messages name them

Pure: needs neither torch nor a master.
"""

from elastane.script_source.attributes import ClassSource, carried_attributes, reported_attributes, with_bases
from elastane.script_source.body import HYPERPARAMETERS, Kind, Role
from elastane.script_source.carrying import IN_EPOCHS, IN_ITERATIONS, Carried, carried_values, cure
from elastane.script_source.loops import iteration_counter, loop_at

__all__ = [
    "HYPERPARAMETERS",
    "IN_EPOCHS",
    "IN_ITERATIONS",
    "Carried",
    "ClassSource",
    "Kind",
    "Role",
    "carried_attributes",
    "carried_values",
    "cure",
    "iteration_counter",
    "loop_at",
    "reported_attributes",
    "with_bases",
]
