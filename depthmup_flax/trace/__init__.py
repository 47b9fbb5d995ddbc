"""What a forward pass is: read from a trace, with shapes alone. Reading graphs knows no rule; `auditing` compares.

Files in the order in which they read a graph, and the question that each answers:

=========================  ===========================================================================
`tracing`, `graph`         Which operations make which arrays? (`equations`, `stand_ins`: of a kernel?)
`constants`                Which number is in a constant?
`kinds`, `views`, `uses`   What depends on what? How is a parameter used, along which axes?
`norms`                    Where is an array normalized?
`activations`, `paths`     On which paths does an array depend on earlier ones?
`residual_sums`            Is a sum the end of a branch?
`streams`                  Which branches are inside of others, and what is inside of branches?
`constant_numbers`         Which number has a running average, which rate a random mask?
`terms`, `factors`         By which constants are products with parameters multiplied?
`reading`                  All of these for one graph. ``print(reading)`` shows every array.
`branches`                 What multiplies each branch, its shortcut and the stream?
`products`, `scores`       ... each product with a parameter, and of two activations?
`unread`                   What is not understood?
`facts`, `pairs`           All that `auditing` asks, of one model, and of a model and its base.
`slices`                   Which slices of a parameter are read apart?
=========================  ===========================================================================

**To add a primitive**, put its name into a row of `util.primitives`. For most that is all: rows say whether it copies,
moves, sums, scales or bends. What they do not say is a row, and often a small function, of one of these tables:

* `constants.FOLDS`: what it makes of numbers;
* `views._MOVES`, `uses._USES`: where it moves axes of a parameter, how it uses one;
* `norms._GROWTH`: how its result grows with what it reads;
* `constant_numbers._MEANS`: what it makes of a random mask;
* `factors._OPERATIONS`, `factors._INSIDE`: what it does to factors, of activations and of parameters;
* `slices._READS`: which part of its inputs it makes a part of its result of.

A kernel or a library's function with a name is a row of `stand_ins`.

**To mend a false verdict**, find the first array that is read wrongly: ``print(facts.reading)``, and look for it in the
table above. A missing multiplier that is there was lost at an operation whose result is a term of its own. As here:

>>> graph = trace(lambda p, s, x: jax.lax.cummax(0.5 * (x @ p["w"])), {"w": w}, {}, x, {})
>>> traced(graph, {}, (), ()).readouts  # the 0.5 is lost: `cummax` has no row
{'w': frozenset({1.0})}
>>> factors._OPERATIONS["cummax"] = factors._of_sum  # a row: an entry of its input, in another place
>>> traced(graph, {}, (), ()).readouts
{'w': frozenset({0.5})}
"""
