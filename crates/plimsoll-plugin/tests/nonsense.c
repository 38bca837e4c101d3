/*
 * A plugin that returns what its input says: its results are read from the bytes that it is
 * given. With one of the macros below it can't be loaded; with SPIN `decode` never returns.
 *
 *   match    result: 4 bytes; with more bytes it is PLIMSOLL_OK
 *   decode   result: 4 bytes, then a struct plimsoll_frame, in the machine's own order
 *   encode   result: 4 bytes, then the length that it claims to have written
 *   make     the same, in the payload
 */
#include <string.h>

#include "plimsoll_codec.h"

static int32_t match(const uint8_t *bytes, uint64_t length, uint32_t sender) {
    int32_t result = PLIMSOLL_OK;
    (void)sender;
    if (length == sizeof result) memcpy(&result, bytes, sizeof result);
    return result;
}

static int32_t decode(const uint8_t *bytes, uint64_t length, uint32_t sender,
                      struct plimsoll_frame *frame) {
    int32_t result;
    (void)sender;
#ifdef SPIN
    for (volatile int spins = 1; spins;) continue;
#endif
    if (length < sizeof result + sizeof *frame) return PLIMSOLL_MORE;
    memcpy(&result, bytes, sizeof result);
    memcpy(frame, bytes + sizeof result, sizeof *frame);
    return result;
}

static int32_t claim(const uint8_t *bytes, uint64_t length, struct plimsoll_buffer *out) {
    int32_t result;
    if (length < sizeof result + sizeof out->length) return PLIMSOLL_MALFORMED;
    memcpy(&result, bytes, sizeof result);
    memcpy(&out->length, bytes + sizeof result, sizeof out->length);
    return result;
}

static int32_t encode(const uint8_t *frame, uint64_t length, uint64_t note, uint64_t id,
                      struct plimsoll_buffer *out) {
    (void)note;
    (void)id;
    return claim(frame, length, out);
}

static int32_t make(uint32_t what, uint64_t id, uint64_t note, const uint8_t *payload,
                    uint64_t payload_length, struct plimsoll_buffer *out) {
    (void)what;
    (void)id;
    (void)note;
    return claim(payload, payload_length, out);
}

#ifndef ABI
#define ABI PLIMSOLL_CODEC_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(struct plimsoll_codec)
#endif
#ifndef NAME
#define NAME "nonsense"
#endif
#ifndef ENCODE
#define ENCODE encode
#endif

static const struct plimsoll_codec codec = {
    .abi = ABI,
    .size = SIZE,
    .name = NAME,
    .match = match,
    .decode = decode,
    .encode = ENCODE,
    .make = make,
};

#ifdef MISSING
/* No library defines this function. */
extern int32_t nowhere_to_be_found(void);
#endif

#ifdef SYMBOL
const struct plimsoll_codec *SYMBOL(const struct plimsoll_host *host);
__attribute__((visibility("default"))) const struct plimsoll_codec *SYMBOL(
#else
const struct plimsoll_codec *plimsoll_codec(
#endif
    const struct plimsoll_host *host) {
    (void)host;
    (void)encode;
    (void)codec;
#ifdef MISSING
    if (nowhere_to_be_found()) return NULL;
#endif
#ifdef REFUSE
    return NULL;
#else
    return &codec;
#endif
}
