/*
 * A codec plugin in C: x_example, a small protocol with length-prefixed frames.
 *
 *   request    'x' | type | 0 | id: 4 | length: 4 | payload
 *   response   'x' | type | 1 | id: 4 | status: 2 | length: 4 | payload
 *
 * Types: 0 heartbeat, 1 message, 2 goaway. Numbers are big-endian. Statuses: 0 success,
 * 1 error, 2 busy, 3 unreachable, 4 timeout, 5 closed. With --verbose every frame is logged.
 *
 *   cc -O2 -Wall -fPIC -shared -I crates/plimsoll-plugin/include \
 *      -o x_example.so crates/plimsoll-plugin/examples/x_example.c
 */
#include <stdio.h>
#include <string.h>

#include "plimsoll_codec.h"

enum { HEARTBEAT = 0, MESSAGE = 1, GOAWAY = 2 };
enum { REQUEST_HEAD = 11, RESPONSE_HEAD = 13 };

static const struct plimsoll_host *host;

static uint32_t be32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put_be32(uint8_t *at, uint64_t number) {
    at[0] = (uint8_t)(number >> 24);
    at[1] = (uint8_t)(number >> 16);
    at[2] = (uint8_t)(number >> 8);
    at[3] = (uint8_t)number;
}

/* Logs a message, with the beginning of the payload if there is one. */
static void tell(const char *format, int is_request, const uint8_t *payload, uint64_t length) {
    char text[200];
    if (!host->wants(PLIMSOLL_DEBUG)) return;
    const char *name = is_request ? "Request" : "Response";
    int shown = length > 100 ? 100 : (int)length;
    int n = snprintf(text, sizeof text, format, name, shown, payload ? (const char *)payload : "");
    if (n > 0) host->log(PLIMSOLL_DEBUG, text, (size_t)n < sizeof text ? (uint64_t)n : sizeof text - 1);
}

static int32_t match(const uint8_t *bytes, uint64_t length, uint32_t sender) {
    (void)sender;
    if (length == 0) return PLIMSOLL_MORE;
    return bytes[0] == 'x' ? PLIMSOLL_OK : PLIMSOLL_MALFORMED;
}

static int32_t decode(const uint8_t *bytes, uint64_t length, uint32_t sender,
                      struct plimsoll_frame *frame) {
    if (length < 3) return PLIMSOLL_MORE;
    /* Both sides send heartbeats; a server announces its end in a request. */
    int is_request = bytes[2] == 0;
    if (bytes[0] != 'x' || bytes[1] > GOAWAY || bytes[2] > 1) return PLIMSOLL_MALFORMED;
    if (!is_request && sender == PLIMSOLL_CLIENT && bytes[1] != HEARTBEAT) return PLIMSOLL_MALFORMED;
    uint64_t head = is_request ? REQUEST_HEAD : RESPONSE_HEAD;
    frame->length = head;
    if (length < head) return PLIMSOLL_MORE;
    tell("[in decode%s]%.*s", is_request, NULL, 0);
    frame->payload_at = head;
    frame->payload_length = be32(bytes + head - 4);
    frame->length = head + frame->payload_length;
    frame->id = be32(bytes + 3);
    frame->heartbeat = bytes[1] == HEARTBEAT;
    frame->kind = bytes[1] == GOAWAY ? PLIMSOLL_GOAWAY
                  : is_request       ? PLIMSOLL_REQUEST
                                     : PLIMSOLL_RESPONSE;
    /* The id is set, so that a frame over the size limit can be answered. */
    if (length < frame->length) return PLIMSOLL_MORE;
    tell("[out decode%s] payload: %.*s", is_request, bytes + head, frame->payload_length);
    if (!is_request) frame->status = (uint32_t)bytes[7] << 8 | bytes[8];
    return PLIMSOLL_OK;
}

static int32_t encode(const uint8_t *frame, uint64_t length, uint64_t note, uint64_t id,
                      struct plimsoll_buffer *out) {
    (void)note;
    if (length < REQUEST_HEAD || id > UINT32_MAX) return PLIMSOLL_MALFORMED;
    int is_request = frame[2] == 0;
    uint64_t head = is_request ? REQUEST_HEAD : RESPONSE_HEAD;
    if (length < head) return PLIMSOLL_MALFORMED;
    out->length = length;
    if (out->room < length) return PLIMSOLL_ROOM;
    tell(is_request ? "[in encode%s] request: %.*s" : "[in encode%s] response: %.*s", is_request,
         frame + head, length - head);
    memcpy(out->bytes, frame, length);
    put_be32(out->bytes + 3, id);
    tell("[out encode%s]%.*s", is_request, NULL, 0);
    return PLIMSOLL_OK;
}

static int32_t make(uint32_t what, uint64_t id, uint64_t note, const uint8_t *payload,
                    uint64_t payload_length, struct plimsoll_buffer *out) {
    (void)note;
    int is_request = what == PLIMSOLL_MAKE_REQUEST || what == PLIMSOLL_MAKE_HEARTBEAT;
    int is_heartbeat = what == PLIMSOLL_MAKE_HEARTBEAT || what == PLIMSOLL_MAKE_HEARTBEAT_ACK;
    uint64_t head = is_request ? REQUEST_HEAD : RESPONSE_HEAD;
    if (what > PLIMSOLL_MAKE_CLOSED) return PLIMSOLL_NONE;
    if (id > UINT32_MAX || payload_length > UINT32_MAX) return PLIMSOLL_NONE;
    out->length = head + payload_length;
    if (out->room < out->length) return PLIMSOLL_ROOM;
    out->bytes[0] = 'x';
    out->bytes[1] = is_heartbeat ? HEARTBEAT : MESSAGE;
    out->bytes[2] = !is_request;
    put_be32(out->bytes + 3, id);
    if (!is_request) {
        out->bytes[7] = 0;
        out->bytes[8] = what < PLIMSOLL_MAKE_BUSY ? 0 : (uint8_t)(what - PLIMSOLL_MAKE_BUSY + 2);
    }
    put_be32(out->bytes + head - 4, payload_length);
    if (payload_length > 0) memcpy(out->bytes + head, payload, payload_length);
    return PLIMSOLL_OK;
}

static const struct plimsoll_codec codec = {
    .abi = PLIMSOLL_CODEC_ABI,
    .size = sizeof(struct plimsoll_codec),
    .name = "x_example",
    .match = match,
    .decode = decode,
    .encode = encode,
    .make = make,
};

const struct plimsoll_codec *plimsoll_codec(const struct plimsoll_host *given) {
    if (given->abi != PLIMSOLL_CODEC_ABI) return NULL;
    host = given;
    return &codec;
}
