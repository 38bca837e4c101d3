/*
 * The codec plugin interface of Plimsoll, version 1.
 *
 * A plugin is a shared object that teaches Plimsoll a protocol of requests and answers
 * that carry ids: where a frame ends, what it is for, how to give it another id. It
 * exports one function, plimsoll_codec(), which gives a table of four functions.
 *
 *   cc -O2 -fPIC -shared -o my_codec.so my_codec.c
 *
 * Rules:
 *  - The functions keep nothing between two calls and are called from several threads at
 *    once: what they need is in their arguments.
 *  - They read and write only the bytes that they are given, and neither keep nor free them.
 *  - They return one of the results below. Anything else, and any length that can't be,
 *    closes the connection whose bytes were looked at, and nothing more.
 *  - They don't throw, longjmp or exit. A plugin is part of the process that loads it: one
 *    that writes outside its memory takes the process with it.
 */
#ifndef PLIMSOLL_CODEC_H
#define PLIMSOLL_CODEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Goes up with every change that a plugin of the version before would not survive. */
#define PLIMSOLL_CODEC_ABI 1

/* Results of functions. */
#define PLIMSOLL_OK 0
/* match, decode: more bytes are needed to tell. */
#define PLIMSOLL_MORE 1
/* match: another protocol. decode: the bytes can't be a frame. */
#define PLIMSOLL_MALFORMED 2
/* encode, make: the buffer is too small; its length says how much is needed. */
#define PLIMSOLL_ROOM 3
/* make: the protocol has no such frame. */
#define PLIMSOLL_NONE 4
/* The plugin itself has failed. */
#define PLIMSOLL_FAILED 5

/* Who sent the bytes. */
#define PLIMSOLL_CLIENT 0
#define PLIMSOLL_SERVER 1

/* What a frame is for: plimsoll_frame.kind. */
#define PLIMSOLL_REQUEST 0
/* A request that wants no answer. */
#define PLIMSOLL_ONEWAY 1
#define PLIMSOLL_RESPONSE 2
/* The sender takes no more requests on this connection. */
#define PLIMSOLL_GOAWAY 3

/* What decode tells of a frame. It is all zeros when decode is called. */
struct plimsoll_frame {
    /* Bytes of the whole frame, counted from the first one given; with PLIMSOLL_MORE how
     * many are needed in all, or 0 where that is not known yet. Then id, note, kind and
     * heartbeat may be set as well, once they are known: with an id that is not 0, a frame
     * that is longer than allowed is answered and skipped; without, its connection ends. */
    uint64_t length;
    /* The id by which an answer finds its request. The ids that encode and make are asked
     * for are below 2^32, or were decoded before. */
    uint64_t id;
    /* Anything that encode and make need to know of the frame again. */
    uint64_t note;
    /* Where in the frame the payload is: for messages and the echo server. */
    uint64_t payload_at;
    uint64_t payload_length;
    /* PLIMSOLL_REQUEST ... PLIMSOLL_GOAWAY */
    uint32_t kind;
    /* 1: a heartbeat (a request), or the answer to one (a response). */
    uint32_t heartbeat;
    /* Requests: how long the client waits, in milliseconds; 0: not said. */
    uint32_t timeout_ms;
    /* Responses: 0 for a success, else the protocol's own number. */
    uint32_t status;
};

/* Where encode and make write to. */
struct plimsoll_buffer {
    uint8_t *bytes;
    /* Bytes that may be written. */
    uint64_t room;
    /* Set by the function: bytes written, or with PLIMSOLL_ROOM bytes needed. */
    uint64_t length;
};

/* What is to be made. */
#define PLIMSOLL_MAKE_REQUEST 0
#define PLIMSOLL_MAKE_RESPONSE 1
#define PLIMSOLL_MAKE_HEARTBEAT 2
#define PLIMSOLL_MAKE_HEARTBEAT_ACK 3
/* Answers that say why a request came to nothing: no room for more requests; nobody to
 * take it; no answer in time; the connection ended before the answer came. */
#define PLIMSOLL_MAKE_BUSY 4
#define PLIMSOLL_MAKE_UNREACHABLE 5
#define PLIMSOLL_MAKE_TIMEOUT 6
#define PLIMSOLL_MAKE_CLOSED 7

/* The plugin's functions. All must be there. */
struct plimsoll_codec {
    /* PLIMSOLL_CODEC_ABI */
    uint32_t abi;
    /* sizeof(struct plimsoll_codec) */
    uint32_t size;
    /* What people call the protocol: UTF-8, at most 63 bytes, ended by a zero byte. */
    const char *name;

    /* Are these the first bytes of a connection that speaks the protocol? */
    int32_t (*match)(const uint8_t *bytes, uint64_t length, uint32_t sender);

    /* The frame that the bytes (at least one) begin with; more may follow it. */
    int32_t (*decode)(const uint8_t *bytes, uint64_t length, uint32_t sender,
                      struct plimsoll_frame *frame);

    /* Writes a whole frame, whose note was `note`, with another id. */
    int32_t (*encode)(const uint8_t *frame, uint64_t length, uint64_t note, uint64_t id,
                      struct plimsoll_buffer *out);

    /* Writes a frame of the plugin's own. `note` is that of the request that is answered,
     * or 0 where nothing is answered. Only requests and responses have a payload. */
    int32_t (*make)(uint32_t what, uint64_t id, uint64_t note, const uint8_t *payload,
                    uint64_t payload_length, struct plimsoll_buffer *out);
};

/* Levels of messages. */
#define PLIMSOLL_ERROR 0
#define PLIMSOLL_WARN 1
#define PLIMSOLL_DEBUG 2

/* What Plimsoll does for plugins. It stays where it is until the process ends. */
struct plimsoll_host {
    /* The version that Plimsoll speaks. */
    uint32_t abi;
    /* sizeof(struct plimsoll_host) */
    uint32_t size;
    /* 1: messages of this level are wanted (debug: with --verbose). */
    uint32_t (*wants)(uint32_t level);
    /* Tells a message of `length` bytes, UTF-8; more than 1024 bytes are cut. */
    void (*log)(uint32_t level, const char *text, uint64_t length);
};

/*
 * The one symbol that a plugin exports. Called once for each time the plugin is loaded.
 * The table must stay where it is until the process ends, and so does the plugin. A null
 * pointer says that the plugin can't work with this host.
 */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const struct plimsoll_codec *plimsoll_codec(const struct plimsoll_host *host);

#ifdef __cplusplus
}
#endif

#endif
