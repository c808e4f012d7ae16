// One file by NORM, from a source to receivers; baselines.py compiles and runs it.
//
//   norm send GROUP PORT FILE RECEIVERS RATE SEGMENT   RATE in bits a second, 0: NORM's congestion control finds it;
//                                                      prints the seconds until all have acknowledged the file
//   norm receive GROUP PORT PATH NUMBER                prints `ready`, then `done` when the file is at PATH, and ends when its
//                                                      standard input does
//
// Receivers answer the source alone, since light leads one way. The library's header is no valid C.

#include <normApi.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace {

constexpr char INTERFACE[] = "eth0";
// A block has so many packets, for which so many packets of parity can be made.
constexpr UINT16 BLOCK = 128, PARITY = 8;
// What either end may hold, and what sockets ask for; the kernel gives at most its limits.
constexpr UINT32 HELD_BYTES = 256u << 20;
constexpr unsigned SENDING_BYTES = 4u << 20, RECEIVING_BYTES = 32u << 20;
// The first round trip that the source reckons with, and the longest, in seconds: the hosts are on one machine.
constexpr double ROUND_TRIP_S = 0.01, ROUND_TRIP_MAX_S = 1;
// Where congestion control begins, and what it stays above, in bits a second.
constexpr double FIRST_RATE = 1e7, LEAST_RATE = 1e6, MOST_RATE = 1e10;
// How often receivers are asked again whether they have everything.
constexpr int ASKED_MOST = 200;
constexpr NormNodeId SOURCE = 1, FIRST_RECEIVER = 100;

[[noreturn]] void fail(const char *what) {
    fprintf(stderr, "NORM: %s\n", what);
    _exit(1);
}

NormSessionHandle session(NormInstanceHandle instance, char **arguments, NormNodeId own) {
    NormSessionHandle made = NormCreateSession(instance, arguments[2], static_cast<UINT16>(atoi(arguments[3])), own);
    if (made == NORM_SESSION_INVALID) fail("no session for this group and port");
    NormSetMulticastInterface(made, INTERFACE);
    NormSetTTL(made, 1);
    return made;
}

int send(NormInstanceHandle instance, char **arguments) {
    const int receivers = atoi(arguments[5]);
    const double rate = atof(arguments[6]);
    NormSessionHandle own = session(instance, arguments, SOURCE);
    NormSetGrttEstimate(own, ROUND_TRIP_S);
    NormSetGrttMax(own, ROUND_TRIP_MAX_S);
    NormSetGroupSize(own, static_cast<unsigned>(receivers));
    NormSetTxCacheBounds(own, static_cast<NormSize>(4) << 30, 1, 16);
    if (rate > 0) {
        NormSetTxRate(own, rate);
    } else {
        NormSetTxRate(own, FIRST_RATE);
        NormSetTxRateBounds(own, LEAST_RATE, MOST_RATE);
        NormSetCongestionControl(own, true, true);
    }
    for (int number = 0; number < receivers; number++) NormAddAckingNode(own, FIRST_RECEIVER + number);
    // A session of its own for each process: receivers tell sources that begin anew by it.
    const NormSessionId life = static_cast<NormSessionId>(getpid());
    if (!NormStartSender(own, life, HELD_BYTES, static_cast<UINT16>(atoi(arguments[7])), BLOCK, PARITY)) {
        fail("the source does not start");
    }
    NormSetTxSocketBuffer(own, SENDING_BYTES);
    const auto begun = std::chrono::steady_clock::now();
    NormObjectHandle file = NormFileEnqueue(own, arguments[4]);
    if (file == NORM_OBJECT_INVALID) fail("the file cannot be sent");
    NormSetWatermark(own, file, true);
    NormEvent event;
    int asked = 0;
    while (NormGetNextEvent(instance, &event)) {
        if (event.type == NORM_TX_OBJECT_PURGED) fail("the source gave the file up");
        if (event.type != NORM_TX_WATERMARK_COMPLETED) continue;
        if (NormGetAckingStatus(own) == NORM_ACK_SUCCESS) {
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
            printf("%.6f\n", took.count());
            fflush(stdout);
            // The library's own end may wait for its timers.
            _exit(0);
        }
        if (++asked > ASKED_MOST) fail("receivers do not acknowledge the file");
        NormResetWatermark(own);
    }
    fail("the source has ended");
}

// Moves the file to its place; NORM has written it under a name of its own in a folder beside.
void keep(NormObjectHandle file, const char *path) {
    char name[4096];
    if (!NormFileGetName(file, name, sizeof name)) fail("a file without a name has come");
    std::error_code error;
    std::filesystem::rename(name, path, error);
    if (error) fail("the file cannot be moved to its place");
    puts("done");
    fflush(stdout);
}

int receive(NormInstanceHandle instance, char **arguments) {
    const std::string folder = std::string(arguments[4]) + ".parts/";
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    if (error || !NormSetCacheDirectory(instance, folder.c_str())) fail("no folder for what comes");
    NormSessionHandle own = session(instance, arguments, FIRST_RECEIVER + static_cast<NormNodeId>(atoi(arguments[5])));
    NormSetDefaultUnicastNack(own, true);
    if (!NormStartReceiver(own, HELD_BYTES)) fail("the receiver does not start");
    NormSetRxSocketBuffer(own, RECEIVING_BYTES);
    puts("ready");
    fflush(stdout);
    pollfd waits[] = {{NormGetDescriptor(instance), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    NormEvent event;
    while (poll(waits, 2, -1) >= 0) {
        if (waits[1].revents) {
            std::filesystem::remove_all(folder, error);
            _exit(0);
        }
        while (NormGetNextEvent(instance, &event, false)) {
            if (event.type == NORM_RX_OBJECT_ABORTED) fail("the receiver gave the file up");
            if (event.type == NORM_RX_OBJECT_COMPLETED) keep(event.object, arguments[4]);
        }
    }
    fail("the receiver cannot wait for packets");
}

}  // namespace

int main(int count, char **arguments) {
    NormInstanceHandle instance = NormCreateInstance();
    if (instance == NORM_INSTANCE_INVALID) fail("the library does not start");
    if (count == 8 && !strcmp(arguments[1], "send")) return send(instance, arguments);
    if (count == 6 && !strcmp(arguments[1], "receive")) return receive(instance, arguments);
    fail("say send GROUP PORT FILE RECEIVERS RATE SEGMENT, or receive GROUP PORT PATH NUMBER");
}
