/* GGUF: header, metadata, the model's configuration and the vocabulary. */
#include "fuzz/fuzz.h"

#include "ckpt/source_internal.h"
#include "core/alloc.h"

static void ask(const struct rh_gguf *gguf)
{
	size_t count, *lengths;
	const char **texts;
	float *floats;
	int32_t *ints;
	int rc = rh_gguf_strings(gguf, "tokenizer.ggml.tokens", &count, &texts, &lengths);
	if (rc > 0) {
		rh_free(texts);
		rh_free(lengths);
	}
	fuzz_refused(rc);
	rc = rh_gguf_floats(gguf, "tokenizer.ggml.scores", &count, &floats);
	if (rc > 0)
		rh_free(floats);
	fuzz_refused(rc);
	rc = rh_gguf_ints(gguf, "tokenizer.ggml.token_type", &count, &ints);
	if (rc > 0)
		rh_free(ints);
	fuzz_refused(rc);
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	const char *path = fuzz_file(bytes, length);
	struct rh_gguf *gguf;
	struct rh_source *source;
	struct rh_tokenizer *tokenizer;
	int rc = rh_gguf_open(path, &gguf);
	if (rc) {
		fuzz_refused(rc);
		return 0;
	}
	ask(gguf);
	for (int64_t i = 0; i < rh_gguf_count(gguf); i++) {
		const struct rh_gguf_tensor *tensor = rh_gguf_at(gguf, i);
		char end;
		if (tensor->bytes && rh_file_read(tensor->file, tensor->offset + tensor->bytes - 1, &end, 1))
			abort();
	}
	rh_gguf_close(gguf);
	rc = rh_source_open(path, &source);
	if (rc) {
		fuzz_refused(rc);
		return 0;
	}
	rc = rh_source_tokenizer(source, &tokenizer);
	if (!rc)
		rh_tokenizer_destroy(tokenizer);
	fuzz_refused(rc);
	rh_source_close(source);
	return 0;
}

FUZZ_MAIN("gguf")
