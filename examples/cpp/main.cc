// Sends a file to agents, and says how each one fared; waits for an object, and says where it lies; says who is in the cluster.
//
//   polycast-example send FILE all|AGENT...
//   polycast-example read NUMBER [SECONDS]
//   polycast-example status
//
// It talks to the agent of this host, at POLYCAST_SOCKET or where the agent of the packages listens.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "polycast/agent/v1/agent.grpc.pb.h"

namespace api = polycast::agent::v1;
using Words = std::vector<std::string>;

constexpr int kProtocolVersion = 1;

// A call that has failed: its kind for programs is in the trailing metadata, a sentence for people in the status.
void check(const grpc::Status& status, const grpc::ClientContext& context) {
    if (status.ok()) return;
    const auto& trailer = context.GetServerTrailingMetadata();
    const auto kind = trailer.find("polycast-error");
    const std::string name = kind == trailer.end() ? "" : std::string(kind->second.data(), kind->second.size()) + ": ";
    throw std::runtime_error(name + status.error_message());
}

class Client {
public:
    explicit Client(const std::string& socket) {
        grpc::ChannelArguments arguments;
        // Without this the library names the socket's path as the authority, which is none that HTTP/2 knows.
        arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
        agent_ = api::Agent::NewStub(
            grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
        // The application is left out: the default one, which the command line uses too.
        caller_.set_process_id(static_cast<uint64_t>(getpid()));
        api::RegisterRequest request;
        request.set_protocol_version(kProtocolVersion);
        *request.mutable_caller() = caller_;
        api::RegisterResponse response;
        grpc::ClientContext context;
        check(agent_->Register(&context, request, &response), context);
    }

    ~Client() {
        api::UnregisterRequest request;
        *request.mutable_caller() = caller_;
        api::UnregisterResponse response;
        grpc::ClientContext context;
        // The agent forgets a process that has gone.
        (void)agent_->Unregister(&context, request, &response);
    }

    bool send(const std::string& file, const Words& receivers) {
        api::SendRequest request;
        *request.mutable_caller() = caller_;
        // The agent reads the file where it lies. It is not copied, and must not change.
        request.mutable_add()->set_path(std::filesystem::absolute(file).string());
        request.set_all(receivers == Words{"all"});
        if (!request.all()) request.mutable_receivers()->Assign(receivers.begin(), receivers.end());
        grpc::ClientContext context;
        auto events = agent_->Send(&context, request);
        api::SendEvent event;
        bool all_verified = false;
        while (events->Read(&event)) {
            if (event.has_added())
                std::cout << "object " << event.added().data_id() << " is " << event.added().name() << ", "
                          << event.added().length() << " bytes" << std::endl;
            if (event.has_granted()) std::cout << "over " << event.granted().fabric() << std::endl;
            if (event.has_finished()) all_verified = outcome(event.finished());
        }
        check(events->Finish(), context);
        return all_verified;
    }

    void read(uint64_t number, const char* seconds) {
        api::ReadRequest request;
        *request.mutable_caller() = caller_;
        request.set_data_id(number);
        if (seconds != nullptr) request.set_timeout_ms(std::stoull(seconds) * 1000);
        api::Object object;
        grpc::ClientContext context;
        check(agent_->Read(&context, request, &object), context);
        std::cout << object.name() << ", " << object.length() << " bytes, in " << object.path() << std::endl;
    }

    void status() {
        api::StatusRequest request;
        request.set_protocol_version(kProtocolVersion);
        api::ManagerStatusResponse manager;
        grpc::ClientContext context;
        check(agent_->ManagerStatus(&context, request, &manager), context);
        std::cout << "manager " << manager.manager_address() << ":";
        const char* before = " ";
        for (const auto& agent : manager.status().agents()) {
            std::cout << before << agent.name();
            before = ", ";
        }
        std::cout << std::endl;
    }

private:
    static bool outcome(const api::TransferReport& report) {
        bool all_verified = true;
        for (const auto& receiver : report.receivers()) {
            std::cout << receiver.name() << ": " << (receiver.verified() ? "verified" : receiver.error()) << std::endl;
            all_verified &= receiver.verified();
        }
        return all_verified;
    }

    std::unique_ptr<api::Agent::Stub> agent_;
    api::Caller caller_;
};

int main(int count, char** arguments) {
    const Words words(arguments + 1, arguments + count);
    const char* socket = std::getenv("POLYCAST_SOCKET");
    try {
        Client client(socket != nullptr ? socket : "/run/polycast/agent.sock");
        if (words.size() >= 3 && words[0] == "send") {
            return client.send(words[1], Words(words.begin() + 2, words.end())) ? 0 : 1;
        } else if (words.size() >= 2 && words[0] == "read") {
            client.read(std::stoull(words[1]), words.size() > 2 ? words[2].c_str() : nullptr);
        } else if (words == Words{"status"}) {
            client.status();
        } else {
            throw std::runtime_error("usage: polycast-example send FILE all|AGENT... | read NUMBER [SECONDS] | status");
        }
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << std::endl;
        return 1;
    }
    return 0;
}
