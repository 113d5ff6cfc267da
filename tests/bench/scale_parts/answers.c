/* The Python of a simulated host. Recording, it runs the real one and keeps each answer; replaying, it gives the same
 * answers in the same order, each after as long as the lone first host took for it, as a machine elsewhere would.
 * Compiled with -DPYTHON="..." (timed) and -DFOLDER="...": FOLDER/<host>/<n> is an answer, <n>.ms its milliseconds,
 * <n>.taken a mark that it was given; FOLDER/alone holds the first host's. The host is the last part of argv[0].
 * The environment variable SCALE_ANSWERS is "replay", or anything else to record. */
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void pass(int from, int to) {
    char block[65536];
    ssize_t got;
    while ((got = read(from, block, sizeof block)) > 0)
        for (ssize_t done = 0; to >= 0 && done < got;) {
            ssize_t put = write(to, block + done, got - done);
            if (put < 0) exit(125);
            done += put;
        }
}

/* The first number that is free, marked as taken. */
static int next(const char *host, const char *ending, char *path, size_t size) {
    for (int number = 0;; number++) {
        snprintf(path, size, FOLDER "/%s/%d%s", host, number, ending);
        int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
        if (file >= 0) {
            close(file);
            return number;
        }
        if (access(path, F_OK) != 0) exit(125);
    }
}

static int replay(const char *host) {
    char path[4096];
    long wait = 0;
    int number = next(host, ".taken", path, sizeof path);
    pass(0, -1);
    snprintf(path, sizeof path, FOLDER "/alone/%d.ms", number);
    FILE *told = fopen(path, "r");
    if (!told || fscanf(told, "%ld", &wait) != 1) return 125;
    fclose(told);
    struct timespec pause = {wait / 1000, wait % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    snprintf(path, sizeof path, FOLDER "/%s/%d", host, number);
    int answer = open(path, O_RDONLY);
    if (answer < 0) return 125;
    pass(answer, 1);
    return 0;
}

static int record(const char *host, char **words) {
    char path[4096];
    struct timespec began, ended;
    int status = 0, number = next(host, "", path, sizeof path);
    clock_gettime(CLOCK_MONOTONIC, &began);
    pid_t child = fork();
    if (child == 0) {
        int answer = open(path, O_WRONLY);
        if (answer < 0 || dup2(answer, 1) < 0) _exit(125);
        close(answer);
        words[0] = PYTHON;
        execv(PYTHON, words);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) return 125;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    int answer = open(path, O_RDONLY);
    if (answer < 0) return 125;
    pass(answer, 1);
    snprintf(path, sizeof path, FOLDER "/%s/%d.ms", host, number);
    FILE *told = fopen(path, "w");
    if (!told) return 125;
    fprintf(told, "%ld\n", (ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000);
    if (fclose(told)) return 125;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int count, char **words) {
    const char *mode = getenv("SCALE_ANSWERS");
    char *host = basename(strdup(words[0]));
    (void)count;
    return mode && !strcmp(mode, "replay") ? replay(host) : record(host, words);
}
