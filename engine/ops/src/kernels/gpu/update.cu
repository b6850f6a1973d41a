// In-place updates of up to eight tensors. Each tensor has separate blocks, in order. A slot without a tensor has no blocks.

// The kernel's arguments for each of its tensors.
#define SLOTS(SLOT) SLOT(0), SLOT(1), SLOT(2), SLOT(3), SLOT(4), SLOT(5), SLOT(6), SLOT(7)
#define SIZES(k) Count n##k, Count blocks##k

// The code for each tensor. `block` counts from the tensor's first block, and wraps round to a huge number in earlier blocks.
#define EACH(CHANGE)                                                                              \
    Count block = blockIdx.x; CHANGE(0) block -= blocks0; CHANGE(1) block -= blocks1; CHANGE(2)   \
    block -= blocks2; CHANGE(3) block -= blocks3; CHANGE(4) block -= blocks4; CHANGE(5)           \
    block -= blocks5; CHANGE(6) block -= blocks6; CHANGE(7)

// Visits every element of a tensor once.
#define FOR_EACH_IN(i, k)                                                                         \
    for (Count i = block < blocks##k ? block * THREADS + threadIdx.x : n##k; i < n##k; i += blocks##k * THREADS)

#define SGD_SLOT(k) SIZES(k), const Stored *gradient##k, Stored *value##k
#define SGD_STEP(k)                                                                               \
    FOR_EACH_IN(i, k) value##k[i] = stored(real(value##k[i]) - real(gradient##k[i]) * (Real)step);

KERNEL sgd_step(double step, SLOTS(SGD_SLOT)) { EACH(SGD_STEP) }

// A factor of 0 has no term: zero times an infinity would be a NaN.
__device__ inline Real term(double factor, Real of) { return (Real)factor == 0 ? 0 : of * (Real)factor; }

// The SGD step with a velocity.
#define CONSTANTS double momentum, double share, double decay, double rate
#define MOMENTUM_SLOT(k) SIZES(k), const Stored *gradient##k, Stored *velocity##k, Stored *value##k
#define MOMENTUM_STEP(k)                                                                          \
    FOR_EACH_IN(i, k) {                                                                           \
        Real value = real(value##k[i]);                                                           \
        Real pull = real(gradient##k[i]) * (Real)share + term(decay, value);                      \
        Stored velocity = stored(term(momentum, real(velocity##k[i])) + pull);                    \
        velocity##k[i] = velocity;                                                                \
        value##k[i] = stored(value - real(velocity) * (Real)rate);                                \
    }

KERNEL momentum_step(CONSTANTS, SLOTS(MOMENTUM_SLOT)) { EACH(MOMENTUM_STEP) }

// Running averages. The new values are scaled first.
#define AVERAGE_SLOT(k) SIZES(k), double scale##k, const double *fresh##k, Stored *running##k
#define AVERAGE(k)                                                                                \
    FOR_EACH_IN(i, k)                                                                             \
        running##k[i] = stored(real(running##k[i]) * (1 - momentum) + fresh##k[i] * scale##k * momentum);

KERNEL average(double momentum, SLOTS(AVERAGE_SLOT)) { EACH(AVERAGE) }

// Rounds f32 values to the type that the layers compute in.
#define CAST_SLOT(k) SIZES(k), const float *kept##k, Stored *used##k
#define CAST(k) FOR_EACH_IN(i, k) used##k[i] = stored(kept##k[i]);

KERNEL cast(SLOTS(CAST_SLOT)) { EACH(CAST) }
