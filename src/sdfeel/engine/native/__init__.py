"""Training in C++, compiled for the model at hand: the steps of loop.py, many times faster.

    trace.py      an nn.Module becomes a list of layers (layers.py), or the reason why not
    lower.py      layers become stages, each one kernel: convolution + dropout + pooling + ReLU
    cpp.py        stages become a few lines of C++ over the headers in include/
    build.py      the C++ becomes a library, kept by hash; library.py calls it
    available.py  all of the above: a library that was compared with the loop in float64, or the
                  reason why there is none
    trainer.py    tasks are trained block by block, without torch
    crowds.py     plain tasks of many clients are trained and added up in one call
    engine.py     NativeEngine, what the rest of the package sees
    rows.py       noise and robust rules over whole rows, with the bits of the plain code

In include/, model_c_api.hpp has the functions that Python calls, and chain.hpp is one local step;
conv.hpp, linear.hpp, first_linear.hpp and pointwise.hpp are stages, residual.hpp is a stage made of
others, losses.hpp is the end; sgd.hpp and adam.hpp move weights. rows_c_api.hpp is a library of its
own, the same for all models.
"""
