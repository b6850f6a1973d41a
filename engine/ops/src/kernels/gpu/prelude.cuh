// The start of every kernel file. Elements are stored as `Stored` and computed with as `Real`, which is wider for bf16. A
// thread adds up its few elements as `Real`, and the threads' sums are added up in double.

#define KERNEL extern "C" __global__ void

typedef unsigned Count;

#if defined(STORED_BF16)
// The upper half of a float's bits.
typedef unsigned short Stored;
typedef float Real;
__device__ inline Real real(Stored stored) { return __uint_as_float((unsigned)stored << 16); }
// Rounds to the nearest value; a value half-way between two rounds to even.
__device__ inline Stored stored(Real real) {
    Stored rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(real));
    return rounded;
}
#else
#if defined(STORED_F64)
typedef double Real;
#else
typedef float Real;
#endif
typedef Real Stored;
__device__ inline Real real(Stored stored) { return stored; }
__device__ inline Stored stored(Real real) { return real; }
#endif

// VECTOR neighbouring elements, four or one: one access, or two for f64. Larger accesses keep more memory traffic in flight.
struct alignas(VECTOR * sizeof(Stored) < 16 ? VECTOR * sizeof(Stored) : 16) Vector {
    Stored of[VECTOR];
};

#define FOR_EACH_OF_VECTOR(k) for (Count k = 0; k < VECTOR; k++)

// Visits every element once for any number of blocks, or every vector if `n` counts vectors.
#define FOR_EACH(i, n) for (Count i = blockIdx.x * THREADS + threadIdx.x; i < (n); i += gridDim.x * THREADS)

// The sizes of images, whose channels are divided into parts. If `plane` counts vectors, every size counts vectors.
#define IMAGES Count images, Count channels, Count plane, Count parts

// A block's part of images: some of the values of one channel.
struct Part {
    Count channel, number, begin, end, channels, plane, parts;

    __device__ Part(IMAGES)
        : channels(channels), plane(plane), parts(parts) {
        Count values = images * plane, share = (values + parts - 1) / parts;
        channel = blockIdx.x % channels;
        number = blockIdx.x / channels;
        begin = number * share;
        if (begin > values) begin = values;
        end = begin + share > values ? values : begin + share;
    }

    // Whether the part is the whole channel.
    __device__ bool is_whole() const { return parts == 1; }

    // The index of the part's first value.
    __device__ Count first() const { return (begin / plane * channels + channel) * plane + begin % plane; }

    // The index of the part's results in [parts, channels].
    __device__ Count place() const { return number * channels + channel; }
};

// A thread's walk over the values of a part. A step to the next value replaces a division.
struct Walk {
    const Part &part;
    Count value, image, pixel, images_on, pixels_on;

    __device__ Walk(const Part &part)
        : part(part), value(part.begin + threadIdx.x), image(value / part.plane), pixel(value % part.plane),
          images_on(THREADS / part.plane), pixels_on(THREADS % part.plane) {}

    __device__ bool inside() const { return value < part.end; }

    // The index of the current value.
    __device__ Count at() const { return (image * part.channels + part.channel) * part.plane + pixel; }

    __device__ void step() {
        value += THREADS;
        image += images_on;
        pixel += pixels_on;
        if (pixel >= part.plane) {
            pixel -= part.plane;
            image++;
        }
    }
};

#define FOR_EACH_OF(part, walk) for (Walk walk(part); walk.inside(); walk.step())

// Adds up a block's threads, always in the same order. All threads call this function and receive the sums. In each round a
// thread adds up eight sums: a tree of pairs would synchronise the threads more often.
template <Count N> struct Sums {
    double of[N];
};

template <Count N> __device__ inline Sums<N> block_sums(Sums<N> own) {
    __shared__ Sums<N> sums[THREADS];
    // Some threads may not have read the previous sums yet.
    __syncthreads();
    sums[threadIdx.x] = own;
    for (Count left = THREADS; left > 1;) {
        Count next = left > 8 ? left / 8 : 1;
        __syncthreads();
        if (threadIdx.x < next) {
            for (Count other = threadIdx.x + next; other < left; other += next)
                for (Count n = 0; n < N; n++) own.of[n] += sums[other].of[n];
            sums[threadIdx.x] = own;
        }
        left = next;
    }
    __syncthreads();
    return sums[0];
}

__device__ inline double block_sum(double value) { return block_sums(Sums<1>{{value}}).of[0]; }

// A thread's share of the parts: every THREADS-th part.
#define FOR_EACH_PART(part, parts) for (Count part = threadIdx.x; part < (parts); part += THREADS)

// Adds up the threads' sums of a part and stores the sum. If the part is a whole channel, it is also rounded to the total.
__device__ inline void leave_sum(const Part &part, Real own, double *sums, Stored *rounded) {
    double sum = block_sum(own);
    if (threadIdx.x != 0) return;
    sums[part.place()] = sum;
    if (part.is_whole()) rounded[part.channel] = stored(sum);
}

// The difference of an infinity or a NaN from itself is a NaN.
template <class Number> __device__ inline bool is_finite(Number x) { return x - x == 0; }

// Returns max(x, 0). The comparison is "not above zero", so a NaN stays a NaN.
__device__ inline Real rectified(Real x) { return x <= 0 ? 0 : x; }

// Returns the gradient if it passes the relu with output `y`, else 0.
__device__ inline Real passed(Real y, Real grad) { return y <= 0 ? 0 : grad; }
