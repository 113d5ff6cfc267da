/* The engine of a simulated host: listens on its port and passes every connection on to one server for all of them.
 * usage: relay PORT BACKEND_PORT
 * A process of its own for each host, as an engine is, of a few hundred KiB. */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 32

static int tcp(int port, int listening) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, handle = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listening ? bind(handle, (void *)&at, sizeof at) || listen(handle, 16) : connect(handle, (void *)&at, sizeof at)) {
        close(handle);
        return -1;
    }
    return handle;
}

int main(int count, char **words) {
    static struct pollfd polled[1 + 2 * PAIRS];
    static char buffer[65536];
    int number, other, length, done;
    if (count != 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    for (number = 0; number <= 2 * PAIRS; number++) polled[number] = (struct pollfd){.fd = -1, .events = POLLIN};
    if ((polled[0].fd = tcp(atoi(words[1]), 1)) < 0) return 1;
    for (;;) {
        if (poll(polled, 1 + 2 * PAIRS, -1) < 0) continue;
        if (polled[0].revents) {
            int client = accept(polled[0].fd, 0, 0), server = client < 0 ? -1 : tcp(atoi(words[2]), 0);
            for (number = 1; number < 2 * PAIRS && polled[number].fd >= 0; number += 2) continue;
            if (server >= 0 && number < 2 * PAIRS) {
                polled[number].fd = client;
                polled[number + 1].fd = server;
            } else {
                if (client >= 0) close(client);
                if (server >= 0) close(server);
            }
        }
        for (number = 1; number <= 2 * PAIRS; number++) {
            if (polled[number].fd < 0 || !(polled[number].revents & (POLLIN | POLLHUP | POLLERR))) continue;
            other = number % 2 ? number + 1 : number - 1;
            length = read(polled[number].fd, buffer, sizeof buffer);
            for (done = 0; length > 0 && done < length;) {
                int more = write(polled[other].fd, buffer + done, length - done);
                if (more <= 0) length = -1;
                else done += more;
            }
            if (length <= 0) {
                close(polled[number].fd);
                close(polled[other].fd);
                polled[number].fd = polled[other].fd = -1;
                polled[other].revents = 0;
            }
        }
    }
}
