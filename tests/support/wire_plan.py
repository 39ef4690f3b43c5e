"""A step plan as it comes over the wire, with every field set."""

from __future__ import annotations

from hundredfold.internal.v1 import sequence_pb2, worker_pb2

PLAN = worker_pb2.StepPlan(
    step=1,
    new_sequences=[
        worker_pb2.NewSequence(
            slot=3,
            sequence_id=2**64 - 1,
            prompt_token_ids=[5, 6, 7],
            output_token_ids=[8],
            block_ids=[10, 11],
            num_computed_tokens=2,
            choice_index=4,
            params=sequence_pb2.SequenceParams(
                max_tokens=9,
                min_tokens=1,
                temperature=0.5,
                top_p=0.25,
                top_k=7,
                min_p=0.125,
                seed=2**64 - 1,
                stop_token_ids=[1, 2],
                bad_words=[sequence_pb2.BadWord(token_ids=[3, 4]), sequence_pb2.BadWord(token_ids=[5])],
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                repetition_penalty=1.5,
                bias_token_ids=[6],
                bias_values=[-2.0],
                logprobs=0,
                prompt_logprobs=3,
                vocab_limit=60,
            ),
        )
    ],
    grown_slots=[3],
    grown_counts=[2],
    grown_block_ids=[20, 21],
    copies=[worker_pb2.BlockCopy(source=1, destination=2)],
    slots=[3],
    num_tokens=[2],
)
