// Launches: block after block, and in a block thread after thread.
//
// Threads that wait for each other are fibers, each with a stack of its own: one runs until it comes to a barrier or a
// shuffle, and then the next. With SIMULATED_GPU_REVERSED blocks and threads run from the last to the first: what
// depends on who is first, where nobody has said so, gives another result.

#include <cstdlib>
#include <cstring>

#include "gpu.h"
#include "thread.h"

static constexpr unsigned WARP = 32;
static constexpr size_t STACK = 64 << 10;

// Leaves off here, with the stack pointer in `*from`, and goes on where `to` left off.
extern "C" void simulated_switch(void **from, void *to);
asm(R"(
.globl simulated_switch
simulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

enum class Waits { no, at_a_barrier, for_its_warp, ended };

struct Fiber : Thread {
    char *stack;
    void *at;
    Waits waits;
    // Of a shuffle: what it asks for, and what it gets.
    int mode;
    uint32_t value, by, clamp, got, inside;
};

// What runs at the moment: there is one launch at a time.
static const Kernel *kernel;
static char *arguments;
static Fiber *fiber;
static void *scheduler;

static void fault(Thread *thread, const char *what, char *place, int bytes) {
    if (faulty) return;
    simulated_fault("%s, block %u, thread %u: %s (%d bytes at %p)", kernel->name.c_str(), thread->ctaid[0], thread->tid[0],
                    what, bytes, (void *)place);
}

static void pause(Fiber *one, Waits waits) {
    one->waits = waits;
    simulated_switch(&one->at, scheduler);
}

static void barrier(Thread *thread) { pause(static_cast<Fiber *>(thread), Waits::at_a_barrier); }

static uint32_t shuffle(Thread *thread, int mode, uint32_t value, uint32_t by, uint32_t clamp, uint32_t *inside) {
    auto *one = static_cast<Fiber *>(thread);
    one->mode = mode, one->value = value, one->by = by & 31, one->clamp = clamp;
    pause(one, Waits::for_its_warp);
    *inside = one->inside;
    return one->got;
}

static void begin() {
    Fiber *one = fiber;
    kernel->run(arguments, one);
    pause(one, Waits::ended);
    abort();
}

// Gives every lane of a warp that shuffles what it asks for, as PTX describes shfl.
static void exchange(Fiber *const *warp, unsigned lanes) {
    for (unsigned lane = 0; lane < lanes; lane++) {
        Fiber *one = warp[lane];
        if (one->waits != Waits::for_its_warp) continue;
        int segment = one->clamp >> 8 & 31, least = lane & segment, most = least | (one->clamp & 31 & ~segment);
        int from = 0;
        switch (one->mode) {
            case 0: from = lane ^ one->by, one->inside = from <= most; break;
            case 1: from = lane + one->by, one->inside = from <= most; break;
            case 2: from = lane - one->by, one->inside = from >= most; break;
            default: from = least | (one->by & ~segment), one->inside = from <= most; break;
        }
        if (!one->inside) from = lane;
        if (from >= (int)lanes || warp[from]->waits != Waits::for_its_warp) {
            simulated_fault("%s: a shuffle from lane %d, which is not there", kernel->name.c_str(), from);
            from = lane;
        }
        one->got = warp[from]->value;
    }
    for (unsigned lane = 0; lane < lanes; lane++)
        if (warp[lane]->waits == Waits::for_its_warp) warp[lane]->waits = Waits::no;
}

static unsigned count(const std::vector<Fiber *> &fibers, unsigned threads, Waits waits) {
    unsigned found = 0;
    for (unsigned thread = 0; thread < threads; thread++) found += fibers[thread]->waits == waits;
    return found;
}

static void place_thread(Thread &thread, unsigned number) {
    thread.tid[0] = number % thread.ntid[0];
    thread.tid[1] = number / thread.ntid[0] % thread.ntid[1];
    thread.tid[2] = number / thread.ntid[0] / thread.ntid[1];
    thread.lane = number % WARP;
}

static void run_fibers(const Thread &block, unsigned threads, bool reversed) {
    static std::vector<Fiber *> fibers;
    while (fibers.size() < threads) {
        auto *one = new Fiber;
        one->stack = static_cast<char *>(aligned_alloc(64, STACK));
        fibers.push_back(one);
    }
    for (unsigned number = 0; number < threads; number++) {
        Fiber *one = fibers[number];
        static_cast<Thread &>(*one) = block;
        place_thread(*one, number);
        one->waits = Waits::no;
        // As simulated_switch leaves a stack: six registers, and where to go on; `begin` never returns.
        void **top = reinterpret_cast<void **>(one->stack + STACK - 64);
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(begin);
        for (int i = 0; i < 6; i++) *--top = nullptr;
        one->at = top;
    }
    while (count(fibers, threads, Waits::ended) < threads) {
        for (unsigned i = 0; i < threads; i++) {
            fiber = fibers[reversed ? threads - 1 - i : i];
            if (fiber->waits == Waits::no) simulated_switch(&scheduler, fiber->at);
        }
        if (count(fibers, threads, Waits::for_its_warp) > 0) {
            for (unsigned first = 0; first < threads; first += WARP)
                exchange(&fibers[first], std::min(WARP, threads - first));
            continue;
        }
        for (unsigned thread = 0; thread < threads; thread++)
            if (fibers[thread]->waits == Waits::at_a_barrier) fibers[thread]->waits = Waits::no;
    }
}

void run(Device *device, const Kernel &one, const Shape &shape, char *given) {
    static const bool reversed = *setting("SIMULATED_GPU_REVERSED", "") != 0;
    kernel = &one, arguments = given;
    std::vector<char> memory(one.shared + shape.shared + 16);
    Thread block{};
    memcpy(block.ntid, shape.threads, sizeof block.ntid);
    memcpy(block.nctaid, shape.blocks, sizeof block.nctaid);
    block.shared = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
    block.memory = device->memory, block.state = device->state, block.size = MEMORY;
    block.fault = fault, block.barrier = barrier, block.shuffle = shuffle;
    uint64_t blocks = (uint64_t)shape.blocks[0] * shape.blocks[1] * shape.blocks[2];
    unsigned threads = shape.threads[0] * shape.threads[1] * shape.threads[2];
    for (uint64_t i = 0; i < blocks && !faulty; i++) {
        uint64_t number = reversed ? blocks - 1 - i : i;
        block.ctaid[0] = number % shape.blocks[0];
        block.ctaid[1] = number / shape.blocks[0] % shape.blocks[1];
        block.ctaid[2] = number / shape.blocks[0] / shape.blocks[1];
        memset(memory.data(), 0xff, memory.size());
        if (one.waits) {
            run_fibers(block, threads, reversed);
            continue;
        }
        for (unsigned j = 0; j < threads; j++) {
            place_thread(block, reversed ? threads - 1 - j : j);
            one.run(given, &block);
        }
    }
}
