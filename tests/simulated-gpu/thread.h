// What a translated kernel knows of the thread that it runs as.

#pragma once
#include <stdint.h>

// What a byte of a device's memory is.
enum State { NOT_ALLOCATED, ALLOCATED, WRITTEN };

struct Thread {
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t lane;
    // The block's.
    char *shared;
    // The device's: `memory` is this long, and `state` says of each byte what it is.
    char *memory;
    uint8_t *state;
    uint64_t size;
    void (*fault)(struct Thread *, const char *what, char *place, int bytes);
    void (*barrier)(struct Thread *);
    // How lanes of a warp exchange values: PTX's shfl.sync.
    uint32_t (*shuffle)(struct Thread *, int mode, uint32_t value, uint32_t by, uint32_t clamp, uint32_t *inside);
};
