/* One added token from its JSON, in tokenizer.json or tokenizer_config.json. */
#include "core/log.h"
#include "token/load_parts.h"

#include <string.h>

int load_added_flags(const json_t *token, const char *where, enum rh_json_need need, unsigned *flags)
{
	static const struct {
		const char *key;
		unsigned flag;
	} keys[] = {{"single_word", ADDED_SINGLE_WORD},
	            {"lstrip", ADDED_LSTRIP},
	            {"rstrip", ADDED_RSTRIP},
	            {"special", ADDED_SPECIAL},
	            {"normalized", ADDED_NORMALIZED}}; /* after what it depends on */
	int rc = 0;
	*flags = 0;
	for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
		int is_set = keys[i].flag == ADDED_NORMALIZED && !(*flags & ADDED_SPECIAL);
		rc = rh_json_bool(token, keys[i].key, where, need, &is_set);
		*flags |= is_set ? keys[i].flag : 0;
	}
	return rc;
}

void warn_of_other_id(const struct rh_tokenizer *tokenizer, const char *text, size_t bytes, int64_t id, const char *where)
{
	int32_t given = vocab_find(&tokenizer->added.contents, text, bytes);
	if (given != id)
		rh_warn_once("%s: added token '%.*s' has id %lld in the file, but gets %d, the next free one, as in the tokenizers library",
		             where, (int)bytes, text, (long long)id, given);
}

int load_added_token(struct rh_tokenizer *tokenizer, const json_t *token, int64_t id, unsigned flags, const char *where)
{
	const json_t *content = json_object_get(token, "content");
	const char *text = NULL;
	int rc = rh_json_string(token, "content", where, RH_JSON_REQUIRED, &text);
	if (!rc)
		rc = added_add(&tokenizer->added, &tokenizer->bpe.vocab, text, json_string_length(content), flags, where);
	if (!rc && *text)
		warn_of_other_id(tokenizer, text, json_string_length(content), id, where);
	return rc;
}
