/* Which chat template a model's own text is: by its checksum. */
#include "data/chat_internal.h"

/* Made of the texts that tests/reference/data_chat.py was given; it prints and checks these lines. */
const struct chat_known_text chat_known_text[] = {
        {UINT64_C(0xf0a6a8278439fdb0), UINT64_C(0x56191e205a440263), "chatml"}, /* line breaks as they are */
        {UINT64_C(0x577a7fce73f72e1e), UINT64_C(0xe2be9fd6966bb5eb), "chatml"}, /* line breaks written \n */
        {UINT64_C(0xa344e8c84fb0282d), UINT64_C(0xda206a9e46a4ac01), "chatml"}, /* each of the two after a default for the prompt */
        {UINT64_C(0x7a128e0473e4be90), UINT64_C(0x846f9032c2079ea2), "chatml"},
        {UINT64_C(0xcc9ddd5a40bc1c0c), UINT64_C(0x8fb5d937b1e8f5d0), "chatml"},   /* Qwen3-Instruct-2507 */
        {UINT64_C(0x98f63cc3d421d28f), UINT64_C(0x99ab995e9629dacd), "smollm2"},  /* SmolLM2-Instruct */
        {UINT64_C(0xf0323af61a5d6e23), UINT64_C(0x83059ddcb62b07a0), "smollm2"},  /* the same, line breaks written \n */
        {UINT64_C(0xe580c2da83415028), UINT64_C(0xd5d943bd0bd9082f), "qwen2"},    /* Qwen2-Instruct */
        {UINT64_C(0x7c4c17cbc95b1d56), UINT64_C(0xc79034a9d5f0ae58), "qwen2"},    /* the same, line breaks written \n */
        {UINT64_C(0x0fe61c920a9d3925), UINT64_C(0xc31e98db8c19d1d3), "qwen2"},    /* Qwen2.5, not instruction-tuned */
        {UINT64_C(0xe392aa06018503fd), UINT64_C(0x2469c9508f79506e), "qwen2.5"},  /* Qwen2.5-Instruct */
        {UINT64_C(0x4457e3d12b367a86), UINT64_C(0x0283f874ff58d644), "qwen3"},    /* Qwen3, first text */
        {UINT64_C(0x0fab82ce8f4d5175), UINT64_C(0xc9e0155c80737cf2), "qwen3"},    /* Qwen3, with checks of content's type */
        {UINT64_C(0x4adb1f81f5c508ea), UINT64_C(0x24f6d97f87d647f5), "llama2"},   /* Llama-2-chat */
        {UINT64_C(0x5cc730147bc3d550), UINT64_C(0x018fc13eb46e7703), "llama2"},   /* the same, one space fewer */
        {UINT64_C(0x09facc0e4aa94318), UINT64_C(0x9799ad6e2dea0594), "llama3"},   /* Meta-Llama-3-Instruct */
        {UINT64_C(0x9ddcd6cd71f96dd7), UINT64_C(0x6ca7779b7730196a), "llama3.1"}, /* Llama-3.1-Instruct, Llama-3.3-Instruct */
        {UINT64_C(0x573e1bcc8c56f178), UINT64_C(0xc3d57e38f5ff0756), "llama3.2"}, /* Llama-3.2-Instruct */
};
const size_t chat_known_texts = sizeof chat_known_text / sizeof *chat_known_text;
