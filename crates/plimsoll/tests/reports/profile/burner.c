/* A server over HTTP/1.1 that spends a known part of each request's CPU time in functions of its own: `hot_function`,
   and in another build also `added_function`. It has a thread for each connection, and prints its address. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOT_INLINED __attribute__((noinline, noclone))

static volatile unsigned sink;

NOT_INLINED void hot_function(void) {
    for (unsigned i = 0; i < 400000; i++) sink += i;
}

#ifdef WITH_ADDED
NOT_INLINED void added_function(void) {
    for (unsigned i = 0; i < 400000; i++) sink ^= i;
}
#endif

NOT_INLINED void handle_request(void) {
    hot_function();
    sink++;
#ifdef WITH_ADDED
    added_function();
    sink++;
#endif
}

static void *serve(void *argument) {
    static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    int connection = (int)(intptr_t)argument;
    char buffer[65536];
    size_t filled = 0;
    for (;;) {
        ssize_t n = read(connection, buffer + filled, sizeof buffer - 1 - filled);
        if (n <= 0) break;
        filled += (size_t)n;
        buffer[filled] = 0;
        char *end = strstr(buffer, "\r\n\r\n");
        if (!end) continue;
        handle_request();
        size_t used = (size_t)(end + 4 - buffer);
        memmove(buffer, buffer + used, filled - used);
        filled -= used;
        if (write(connection, answer, sizeof answer - 1) < 0) break;
    }
    close(connection);
    return NULL;
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64)) return 1;
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) return 1;
        int one = 1;
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)connection)) return 1;
        pthread_detach(thread);
    }
}
