/*
 * The codec plugin interface of Plimsoll, version 1.
 *
 * A plugin is a shared object that teaches Plimsoll a protocol of requests and answers
 * that carry ids: where a frame ends, what kind it has, how to change its id. It
 * exports one function, plimsoll_codec(), which returns a table of four functions.
 *
 *   cc -O2 -fPIC -shared -o my_codec.so my_codec.c
 *
 * Rules:
 *  - The functions keep nothing between two calls and are called from several threads at
 *    once: what they need is in their arguments.
 *  - They read and write only the bytes that they are given, and neither keep nor free them.
 *  - They return one of the results below. Any other result, and any impossible length,
 *    closes the connection that the bytes came from, and has no other effect.
 *  - They don't throw, longjmp or exit. A plugin is part of the process that loads it: if
 *    it writes outside of its memory, the process may crash.
 */
#ifndef PLIMSOLL_CODEC_H
#define PLIMSOLL_CODEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Incremented with every change that breaks existing plugins. */
#define PLIMSOLL_CODEC_ABI 1

/* Results of functions. */
#define PLIMSOLL_OK 0
/* match, decode: more bytes are needed to decide. */
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

/* The kinds of frames: plimsoll_frame.kind. */
#define PLIMSOLL_REQUEST 0
/* A request that wants no answer. */
#define PLIMSOLL_ONEWAY 1
#define PLIMSOLL_RESPONSE 2
/* The sender takes no more requests on this connection. */
#define PLIMSOLL_GOAWAY 3

/* What decode reports about a frame. All fields are 0 when decode is called. */
struct plimsoll_frame {
    /* Bytes of the whole frame, which begins at the first byte given; with PLIMSOLL_MORE,
     * how many are needed in all, or 0 if that is not known yet. With PLIMSOLL_MORE, id,
     * note, kind and heartbeat may be set as soon as they are known: if the id is not 0, a
     * frame over the size limit is answered and skipped; otherwise its connection ends. */
    uint64_t length;
    /* The id that an answer has in common with its request. The ids passed to encode and
     * make are below 2^32, or were decoded before. */
    uint64_t id;
    /* Anything that encode and make need to know about the frame; it is passed to them. */
    uint64_t note;
    /* Where the payload is in the frame; used for messages and by the echo server. */
    uint64_t payload_at;
    uint64_t payload_length;
    /* PLIMSOLL_REQUEST ... PLIMSOLL_GOAWAY */
    uint32_t kind;
    /* 1: a heartbeat (a request), or the answer to one (a response). */
    uint32_t heartbeat;
    /* Requests: how long the client waits, in milliseconds; 0 if unknown. */
    uint32_t timeout_ms;
    /* Responses: 0 for success, otherwise the protocol's status code. */
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

/* The frames that make writes. */
#define PLIMSOLL_MAKE_REQUEST 0
#define PLIMSOLL_MAKE_RESPONSE 1
#define PLIMSOLL_MAKE_HEARTBEAT 2
#define PLIMSOLL_MAKE_HEARTBEAT_ACK 3
/* Answers that say why a request failed: no capacity for more requests; no server
 * available; no answer in time; the connection ended before the answer arrived. */
#define PLIMSOLL_MAKE_BUSY 4
#define PLIMSOLL_MAKE_UNREACHABLE 5
#define PLIMSOLL_MAKE_TIMEOUT 6
#define PLIMSOLL_MAKE_CLOSED 7

/* The plugin's functions. All must be set. */
struct plimsoll_codec {
    /* PLIMSOLL_CODEC_ABI */
    uint32_t abi;
    /* sizeof(struct plimsoll_codec) */
    uint32_t size;
    /* The protocol's name: UTF-8, 1 to 63 bytes, ended by a zero byte. */
    const char *name;

    /* Decides whether a connection that begins with these bytes uses the protocol. */
    int32_t (*match)(const uint8_t *bytes, uint64_t length, uint32_t sender);

    /* Decodes the frame at the beginning of the bytes (at least one); more may follow. */
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

/* Plimsoll's functions for plugins. The struct is valid until the process ends. */
struct plimsoll_host {
    /* The version that Plimsoll supports. */
    uint32_t abi;
    /* sizeof(struct plimsoll_host) */
    uint32_t size;
    /* 1: messages of this level are wanted (debug: with --verbose). */
    uint32_t (*wants)(uint32_t level);
    /* Logs a message of `length` bytes, UTF-8, which is cut after 1024 bytes. */
    void (*log)(uint32_t level, const char *text, uint64_t length);
};

/*
 * The only symbol that a plugin exports. It is called each time the plugin is loaded.
 * The table must stay valid until the process ends; the plugin is never unloaded. A null
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
