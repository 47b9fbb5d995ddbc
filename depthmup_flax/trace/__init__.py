"""What a forward pass is, read from a trace with shapes alone.

Reading graphs knows no rule; `auditing` compares with one. Files in the order in which they read a
graph, and the question that each answers:

* `tracing`, `graph`: which operations make which arrays? (`equations`, `stand_ins`: which kernel?)
* `constants`: which number is in a constant?
* `equal_terms`: which sums are products with a number?
* `kinds`, `views`, `uses`: what depends on what; how is a parameter used, along which `axes`?
* `norms`: where is an array normalized?
* `activations`, `paths`: on which paths does an array depend on earlier ones?
* `residual_sums`: is a sum the end of a branch?
* `streams`: which branches are inside of others, and what is inside of branches?
* `constant_numbers`: which number has a running average, which rate a random mask?
* `terms`, `factors`: which constants multiply products with parameters?
* `reading`: all of these for one graph; ``print(reading)`` shows every array.
* `branches`, `products`, `scores`: what multiplies each branch, each product with a parameter, each
  product of two activations?
* `unread`: what is not understood?
* `facts`, `pairs`: all that `auditing` asks of one model, and of a model and its base.
* `expert_axes`: which axes of a parameter count matrices of their own, as experts do?
* `slices`: which slices of a parameter are read apart?
* `evaluation`, `numpy_operations`: what does a forward pass compute, with factors at some places?
* `code_constants`: which numbers does the code multiply with, and the base model's code?

**To add a primitive**, put its name into a row of `util.primitives`. For most that is all: rows say
whether it copies, moves, sums, scales or bends. What they do not say is a row, and often a small
function, of one of these tables:

* `constants.FOLDS`: what it makes of numbers;
* `views._MOVES`, `uses._USES`: where it moves axes of a parameter, how it uses one;
* `norms._GROWTH`: how its result grows with what it reads;
* `constant_numbers._MEANS`: what it makes of a random mask;
* `factors._OPERATIONS`, `factors._INSIDE`: what it does to factors, of activations, of parameters;
* `slices._READS`: of which parts of its inputs it makes a part of its result.

A kernel or a library's function with a name is a row of `stand_ins`.

**To mend a false verdict**, find the first array that is read wrongly in ``print(facts.reading)``,
and the file above that reads it. A multiplier that the audit misses was lost at an operation whose
result is a term of its own, as here:

>>> graph = trace(lambda p, s, x: x + lax.cummax(0.5 * (x @ p["w"])), {"w": w}, {}, x, {})
>>> traced(graph, {}, (), ()).branches[0].factors  # the 0.5 is lost: "cummax" has no row
{'': frozenset({1.0})}
>>> factors._OPERATIONS["cummax"] = factors._of_sum  # an entry of its input, in another place
>>> traced(graph, {}, (), ()).branches[0].factors
{'w': frozenset({0.5})}

Then write a test of the smallest such graph (``tests/trace``), and run the zoo.
"""
