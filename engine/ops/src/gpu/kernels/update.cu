// In-place updates of a training step. There are kernels for one tensor and for several. Each
// tensor has separate blocks, and the first blocks update the first tensor.

// The kernel's arguments for each of its tensors.
#define OF_1(SLOT) SLOT(0)
#define OF_2(SLOT) OF_1(SLOT), SLOT(1)
#define OF_4(SLOT) OF_2(SLOT), SLOT(2), SLOT(3)
#define OF_8(SLOT) OF_4(SLOT), SLOT(4), SLOT(5), SLOT(6), SLOT(7)
#define SIZES(k) Count n##k, Count blocks##k

// The code for each tensor. `block` counts from the first block of the current tensor. For the
// blocks of earlier tensors the subtraction wraps round, and `block` is above every later count.
#define CHANGE_1(CHANGE) Count block = blockIdx.x; CHANGE(0)
#define CHANGE_2(CHANGE) CHANGE_1(CHANGE) block -= blocks0; CHANGE(1)
#define CHANGE_4(CHANGE) CHANGE_2(CHANGE) block -= blocks1; CHANGE(2) block -= blocks2; CHANGE(3)
#define CHANGE_8(CHANGE)                                                                          \
    CHANGE_4(CHANGE) block -= blocks3; CHANGE(4) block -= blocks4; CHANGE(5)                      \
    block -= blocks5; CHANGE(6) block -= blocks6; CHANGE(7)

// Visits every element of a tensor once.
#define FOR_EACH_IN(i, k)                                                                         \
    for (Count i = block < blocks##k ? block * THREADS + threadIdx.x : n##k; i < n##k; i += blocks##k * THREADS)

#define SGD_SLOT(k) SIZES(k), const Stored *gradient##k, Stored *value##k
#define SGD_STEP(k)                                                                               \
    FOR_EACH_IN(i, k) value##k[i] = stored(real(value##k[i]) - real(gradient##k[i]) * (Real)step);

KERNEL sgd_step_1(double step, OF_1(SGD_SLOT)) { CHANGE_1(SGD_STEP) }
KERNEL sgd_step_2(double step, OF_2(SGD_SLOT)) { CHANGE_2(SGD_STEP) }
KERNEL sgd_step_4(double step, OF_4(SGD_SLOT)) { CHANGE_4(SGD_STEP) }
KERNEL sgd_step_8(double step, OF_8(SGD_SLOT)) { CHANGE_8(SGD_STEP) }

// The SGD step with a velocity.
#define CONSTANTS double momentum, double share, double decay, double rate
#define MOMENTUM_SLOT(k) SIZES(k), const Stored *gradient##k, Stored *velocity##k, Stored *value##k
#define MOMENTUM_STEP(k)                                                                          \
    FOR_EACH_IN(i, k) {                                                                           \
        Real value = real(value##k[i]);                                                           \
        Real pull = real(gradient##k[i]) * (Real)share + value * (Real)decay;                     \
        Stored velocity = stored(real(velocity##k[i]) * (Real)momentum + pull);                   \
        velocity##k[i] = velocity;                                                                \
        value##k[i] = stored(value - real(velocity) * (Real)rate);                                \
    }

KERNEL momentum_step_1(CONSTANTS, OF_1(MOMENTUM_SLOT)) { CHANGE_1(MOMENTUM_STEP) }
KERNEL momentum_step_2(CONSTANTS, OF_2(MOMENTUM_SLOT)) { CHANGE_2(MOMENTUM_STEP) }
KERNEL momentum_step_4(CONSTANTS, OF_4(MOMENTUM_SLOT)) { CHANGE_4(MOMENTUM_STEP) }
KERNEL momentum_step_8(CONSTANTS, OF_8(MOMENTUM_SLOT)) { CHANGE_8(MOMENTUM_STEP) }

// Running averages. The new values are scaled first.
#define AVERAGE_SLOT(k) SIZES(k), double scale##k, const double *fresh##k, Stored *running##k
#define AVERAGE(k)                                                                                \
    FOR_EACH_IN(i, k)                                                                             \
        running##k[i] = stored(real(running##k[i]) * (1 - momentum) + fresh##k[i] * scale##k * momentum);

KERNEL average_1(double momentum, OF_1(AVERAGE_SLOT)) { CHANGE_1(AVERAGE) }
KERNEL average_2(double momentum, OF_2(AVERAGE_SLOT)) { CHANGE_2(AVERAGE) }
KERNEL average_4(double momentum, OF_4(AVERAGE_SLOT)) { CHANGE_4(AVERAGE) }
KERNEL average_8(double momentum, OF_8(AVERAGE_SLOT)) { CHANGE_8(AVERAGE) }

// Rounds f32 values to the type that the layers compute in.
#define CAST_SLOT(k) SIZES(k), const float *kept##k, Stored *used##k
#define CAST(k) FOR_EACH_IN(i, k) used##k[i] = stored(kept##k[i]);

KERNEL cast_1(OF_1(CAST_SLOT)) { CHANGE_1(CAST) }
KERNEL cast_2(OF_2(CAST_SLOT)) { CHANGE_2(CAST) }
KERNEL cast_4(OF_4(CAST_SLOT)) { CHANGE_4(CAST) }
KERNEL cast_8(OF_8(CAST_SLOT)) { CHANGE_8(CAST) }
