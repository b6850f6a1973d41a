// What a step changes in place.

// One tensor among several: its elements, and the blocks that change it. The first blocks are the first tensor's.
#define SIZES(k) Count n##k, Count blocks##k

// Every element of a tensor once. `block` is the block's number among its own and later ones; once it has had its turn,
// it wraps round, and is above all that follow.
#define FOR_EACH_OF(i, k)                                                                         \
    for (Count i = block < blocks##k ? block * THREADS + threadIdx.x : n##k; i < n##k; i += blocks##k * THREADS)

#define DESCENDING(k) SIZES(k), const Stored *gradient##k, Stored *value##k
#define DESCEND(k)                                                                                \
    FOR_EACH_OF(i, k) value##k[i] = stored(real(value##k[i]) - real(gradient##k[i]) * (Real)step); \
    block -= blocks##k;

KERNEL descend(double step, DESCENDING(0)) {
    Count block = blockIdx.x;
    DESCEND(0)
}

KERNEL descend_2(double step, DESCENDING(0), DESCENDING(1)) {
    Count block = blockIdx.x;
    DESCEND(0) DESCEND(1)
}

KERNEL descend_4(double step, DESCENDING(0), DESCENDING(1), DESCENDING(2), DESCENDING(3)) {
    Count block = blockIdx.x;
    DESCEND(0) DESCEND(1) DESCEND(2) DESCEND(3)
}

KERNEL descend_8(
    double step,
    DESCENDING(0),
    DESCENDING(1),
    DESCENDING(2),
    DESCENDING(3),
    DESCENDING(4),
    DESCENDING(5),
    DESCENDING(6),
    DESCENDING(7)
) {
    Count block = blockIdx.x;
    DESCEND(0) DESCEND(1) DESCEND(2) DESCEND(3) DESCEND(4) DESCEND(5) DESCEND(6) DESCEND(7)
}

// The same with a velocity.
#define PUSHED(k) SIZES(k), const Stored *gradient##k, Stored *velocity##k, Stored *value##k
#define PUSH(k)                                                                                   \
    FOR_EACH_OF(i, k) {                                                                           \
        Real value = real(value##k[i]);                                                           \
        Real pull = real(gradient##k[i]) * (Real)share + value * (Real)decay;                     \
        Stored velocity = stored(real(velocity##k[i]) * (Real)momentum + pull);                   \
        velocity##k[i] = velocity;                                                                \
        value##k[i] = stored(value - real(velocity) * (Real)rate);                                \
    }                                                                                             \
    block -= blocks##k;
#define CONSTANTS double momentum, double share, double decay, double rate

KERNEL push(CONSTANTS, PUSHED(0)) {
    Count block = blockIdx.x;
    PUSH(0)
}

KERNEL push_2(CONSTANTS, PUSHED(0), PUSHED(1)) {
    Count block = blockIdx.x;
    PUSH(0) PUSH(1)
}

KERNEL push_4(CONSTANTS, PUSHED(0), PUSHED(1), PUSHED(2), PUSHED(3)) {
    Count block = blockIdx.x;
    PUSH(0) PUSH(1) PUSH(2) PUSH(3)
}

KERNEL push_8(
    CONSTANTS,
    PUSHED(0),
    PUSHED(1),
    PUSHED(2),
    PUSHED(3),
    PUSHED(4),
    PUSHED(5),
    PUSHED(6),
    PUSHED(7)
) {
    Count block = blockIdx.x;
    PUSH(0) PUSH(1) PUSH(2) PUSH(3) PUSH(4) PUSH(5) PUSH(6) PUSH(7)
}

// A running average among several; what is new is scaled first.
#define AVERAGED(k) SIZES(k), double scale##k, const double *fresh##k, Stored *running##k
#define AVERAGE(k)                                                                                \
    FOR_EACH_OF(i, k) {                                                                           \
        running##k[i] = stored(real(running##k[i]) * (1 - momentum) + fresh##k[i] * scale##k * momentum); \
    }                                                                                             \
    block -= blocks##k;

KERNEL average(double momentum, AVERAGED(0)) {
    Count block = blockIdx.x;
    AVERAGE(0)
}

KERNEL average_2(double momentum, AVERAGED(0), AVERAGED(1)) {
    Count block = blockIdx.x;
    AVERAGE(0) AVERAGE(1)
}

KERNEL average_4(double momentum, AVERAGED(0), AVERAGED(1), AVERAGED(2), AVERAGED(3)) {
    Count block = blockIdx.x;
    AVERAGE(0) AVERAGE(1) AVERAGE(2) AVERAGE(3)
}

KERNEL average_8(
    double momentum,
    AVERAGED(0),
    AVERAGED(1),
    AVERAGED(2),
    AVERAGED(3),
    AVERAGED(4),
    AVERAGED(5),
    AVERAGED(6),
    AVERAGED(7)
) {
    Count block = blockIdx.x;
    AVERAGE(0) AVERAGE(1) AVERAGE(2) AVERAGE(3) AVERAGE(4) AVERAGE(5) AVERAGE(6) AVERAGE(7)
}

// What is kept in f32, rounded to what layers compute in.
#define ROUNDED(k) SIZES(k), const float *kept##k, Stored *used##k
#define ROUND(k)                                                                                  \
    FOR_EACH_OF(i, k) used##k[i] = stored(kept##k[i]);                                            \
    block -= blocks##k;

KERNEL round_off(ROUNDED(0)) {
    Count block = blockIdx.x;
    ROUND(0)
}

KERNEL round_off_2(ROUNDED(0), ROUNDED(1)) {
    Count block = blockIdx.x;
    ROUND(0) ROUND(1)
}

KERNEL round_off_4(ROUNDED(0), ROUNDED(1), ROUNDED(2), ROUNDED(3)) {
    Count block = blockIdx.x;
    ROUND(0) ROUND(1) ROUND(2) ROUND(3)
}

KERNEL round_off_8(
    ROUNDED(0),
    ROUNDED(1),
    ROUNDED(2),
    ROUNDED(3),
    ROUNDED(4),
    ROUNDED(5),
    ROUNDED(6),
    ROUNDED(7)
) {
    Count block = blockIdx.x;
    ROUND(0) ROUND(1) ROUND(2) ROUND(3) ROUND(4) ROUND(5) ROUND(6) ROUND(7)
}
