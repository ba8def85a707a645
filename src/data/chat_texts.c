/* The built-in templates: Jinja texts of ours (templates/), each rendering what the family's own does. Every tag strips the blanks around
 * it, so a text means the same whether or not a reader trims blocks. Qwen2.5, Qwen3, Llama 3.1 to 3.3, Mistral v3 and tekken, and Hermes
 * write tools and calls of them; rows that have these are refused by the others, and want the model's own.
 * - Llama 3.1 to 3.3: the date in the system turn is always "26 Jul 2024", which the texts of 3.1 and 3.3 say themselves.
 * - Mistral: the system turn goes before the first question (v1), or before the last (v3, tekken), as the models were trained. */
#include "data/chat_internal.h"

/* The file's bytes with a NUL after them. */
#define TEMPLATE(symbol, file)                                                                                                             \
	extern const char symbol[] __attribute__((visibility("hidden")));                                                                  \
	__asm__(".pushsection .rodata\n" #symbol ": .incbin \"src/data/templates/" file ".jinja\"\n.byte 0\n.popsection\n")

TEMPLATE(chat_chatml, "chatml");
TEMPLATE(chat_smollm2, "smollm2");
TEMPLATE(chat_qwen2, "qwen2");
TEMPLATE(chat_qwen25, "qwen2.5");
TEMPLATE(chat_qwen3, "qwen3");
TEMPLATE(chat_llama2, "llama2");
TEMPLATE(chat_llama3, "llama3");
TEMPLATE(chat_llama31, "llama3.1");
TEMPLATE(chat_gemma, "gemma");
TEMPLATE(chat_gemma3, "gemma3");
TEMPLATE(chat_mistral_v1, "mistral-v1");
TEMPLATE(chat_mistral_v3, "mistral-v3");
TEMPLATE(chat_mistral_tekken, "mistral-tekken");
TEMPLATE(chat_phi3, "phi3");
TEMPLATE(chat_phi4, "phi4");
TEMPLATE(chat_harmony, "harmony");
TEMPLATE(chat_hermes, "hermes");

static const char *const chatml_markers[] = {"<|im_end|>", "<|im_start|>", NULL};
static const char *const llama2_markers[] = {"</s>", NULL}; /* [INST] is plain text */
static const char *const llama3_markers[] = {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", NULL};
static const char *const gemma_markers[] = {"<end_of_turn>", "<start_of_turn>", NULL};
static const char *const mistral_markers[] = {"</s>", "[INST]", "[/INST]", NULL};
static const char *const phi3_markers[] = {"<|end|>", "<|user|>", "<|assistant|>", NULL};
static const char *const phi4_markers[] = {"<|im_end|>", "<|im_start|>", "<|im_sep|>", NULL};
static const char *const harmony_markers[] = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", NULL};

const struct chat_text chat_text[] = {
        {"chatml", chat_chatml, chatml_markers},
        {"smollm2", chat_smollm2, chatml_markers},
        {"qwen2", chat_qwen2, chatml_markers},
        {"qwen2.5", chat_qwen25, chatml_markers},
        {"qwen3", chat_qwen3, chatml_markers},
        {"llama2", chat_llama2, llama2_markers},
        {"llama3", chat_llama3, llama3_markers},
        {"llama3.1", chat_llama31, llama3_markers},
        {"llama3.2", chat_llama31, llama3_markers},
        {"llama3.3", chat_llama31, llama3_markers},
        {"gemma", chat_gemma, gemma_markers},
        {"gemma3", chat_gemma3, gemma_markers},
        {"mistral-v1", chat_mistral_v1, llama2_markers},
        {"mistral-v3", chat_mistral_v3, mistral_markers},
        {"mistral-tekken", chat_mistral_tekken, mistral_markers},
        {"phi3", chat_phi3, phi3_markers},
        {"phi4", chat_phi4, phi4_markers},
        {"harmony", chat_harmony, harmony_markers},
        {"hermes", chat_hermes, chatml_markers},
};
const size_t chat_texts = sizeof chat_text / sizeof *chat_text;
