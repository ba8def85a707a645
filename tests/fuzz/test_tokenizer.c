/* tokenizer.json: the first line of the input is a text, the rest the file; the text is encoded and decoded. */
#include "fuzz/fuzz.h"

#include "core/alloc.h"
#include "core/text.h"
#include "token/tokenizer.h"

#include <string.h>

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	const uint8_t *newline = memchr(bytes, '\n', length);
	size_t text = newline ? (size_t)(newline - bytes) : 0, from = newline ? text + 1 : 0;
	struct rh_tokenizer *tokenizer;
	fuzz_write("tokenizer.json", bytes + from, length - from);
	int rc = rh_tokenizer_load(fuzz_dir(), &tokenizer);
	if (rc) {
		fuzz_refused(rc);
		return 0;
	}
	struct rh_ids ids = {0};
	struct rh_text out = {0};
	if (text < 4096)
		rc = rh_tokenizer_encode(tokenizer, (const char *)bytes, text, RH_TOKENS_WITH_SPECIAL, &ids);
	if (!rc)
		rc = rh_tokenizer_decode(tokenizer, ids.id, ids.count, RH_SPECIALS_KEEP, &out);
	fuzz_refused(rc);
	rh_text_free(&out);
	rh_ids_free(&ids);
	rh_tokenizer_destroy(tokenizer);
	return 0;
}

FUZZ_MAIN("tokenizer")
