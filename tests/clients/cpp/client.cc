// A C++ client of the gRPC door, from stubs that Debian's own protoc makes of proto/. Argument: address.
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>
#include <string>

#include "hundredfold/v1/generation.grpc.pb.h"

namespace pb = hundredfold::v1;

namespace {

int Fail(const std::string& what) {
  std::cerr << "FAILED: " << what << std::endl;
  return 1;
}

// Streams one answer and counts what came; returns 0 when it is whole.
int Stream(pb::GenerationService::Stub* stub) {
  pb::GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Name three rivers of Europe.");
  request.mutable_sampling()->set_max_tokens(12);
  request.mutable_sampling()->set_temperature(0);

  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  pb::GenerateResponse response;
  std::string text;
  int ids = 0, finished = 0;
  unsigned counted = 0;
  while (reader->Read(&response)) {
    if (response.has_delta()) {
      text += response.delta().text();
      ids += response.delta().token_ids_size();
    } else if (response.has_finished()) {
      ++finished;
      counted = response.finished().usage().completion_tokens();
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return Fail(status.error_message());
  if (text.empty() || finished != 1) return Fail("the answer is not whole");
  if (ids != static_cast<int>(counted)) return Fail("the ids are not as many as the usage says");
  std::cout << "ok: " << ids << " tokens streamed:" << text << std::endl;
  return 0;
}

// A wrong value is refused with its name, and a call that is left cancels.
int Refused(pb::GenerationService::Stub* stub) {
  pb::GenerateRequest request;
  request.set_text("x");
  request.mutable_sampling()->set_temperature(-1);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  pb::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) return Fail("a wrong value passed");
  if (status.error_message().find("temperature") == std::string::npos) return Fail("its name is missing");
  std::cout << "ok: refused: " << status.error_message() << std::endl;
  return 0;
}

int Cancelled(pb::GenerationService::Stub* stub) {
  pb::GenerateRequest request;
  request.set_text("One two three");
  request.mutable_sampling()->set_max_tokens(500);
  request.mutable_sampling()->set_ignore_eos(true);
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, request);
  pb::GenerateResponse response;
  if (!reader->Read(&response)) return Fail("nothing came");
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  if (reader->Finish().error_code() != grpc::StatusCode::CANCELLED) return Fail("not cancelled");
  std::cout << "ok: cancelled" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return Fail("usage: client ADDRESS");
  auto stub = pb::GenerationService::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  const int failed = Stream(stub.get()) + Refused(stub.get()) + Cancelled(stub.get());
  return failed == 0 ? 0 : 1;
}
