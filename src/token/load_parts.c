#include "token/load_parts.h"

#include <string.h>

enum { DEEPEST = 16 }; /* Sequences in Sequences */

typedef int load_one(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth);

/* The type of a part; NULL in *type if there is no part. */
static int type_of(const json_t *part, const char *where, const char *what, int depth, const char **type)
{
	*type = NULL;
	if (!part || json_is_null(part))
		return 0;
	if (depth > DEEPEST)
		return rh_fail(-EINVAL, "%s: a %s nested so deep is not supported", where, what);
	return rh_json_string(part, "type", where, RH_JSON_REQUIRED, type);
}

/* The place of a name in a list; `count` where it is not in it. */
static size_t place_of(const char *name, const char *const *names, size_t count)
{
	size_t at = 0;
	while (at < count && strcmp(name, names[at]))
		at++;
	return at;
}

static int unsupported(const char *where, const char *what, const char *type)
{
	return rh_fail(-EINVAL, "%s: %s of type '%s' is not supported", where, what, type);
}

static int load_sequence(struct rh_tokenizer *tokenizer, const json_t *part, const char *key, const char *where, int depth, load_one *load)
{
	const json_t *list = json_object_get(part, key);
	if (!json_is_array(list))
		return rh_fail(-EINVAL, "%s: a Sequence lacks its list '%s'", where, key);
	int rc = 0;
	for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
		const json_t *one = json_array_get(list, i);
		rc = json_is_object(one) ? load(tokenizer, one, where, depth + 1)
		                         : rh_fail(-EINVAL, "%s: an entry of '%s' is not an object", where, key);
	}
	return rc;
}

static int text_member(const json_t *part, const char *key, const char *where, struct rh_text *out)
{
	const json_t *text = json_object_get(part, key);
	if (!json_is_string(text))
		return rh_fail(-EINVAL, "%s: '%s' must be a string", where, key);
	return rh_text_append(out, json_string_value(text), json_string_length(text));
}

static int character_member(const json_t *part, const char *key, const char *where, uint32_t *out)
{
	const json_t *text = json_object_get(part, key);
	if (!json_is_string(text) || !json_string_length(text) || utf8_next(json_string_value(text), out) != json_string_length(text))
		return rh_fail(-EINVAL, "%s: '%s' must be a single character", where, key);
	return 0;
}

/* {"String": text} or {"Regex": expression}. */
static int pattern_member(const json_t *part, const char *where, struct pattern **out)
{
	const json_t *pattern = json_object_get(part, "pattern"), *text;
	if ((text = json_object_get(pattern, "String")) && json_is_string(text))
		return pattern_compile_literal(json_string_value(text), json_string_length(text), where, out);
	if ((text = json_object_get(pattern, "Regex")) && json_is_string(text))
		return pattern_compile(json_string_value(text), json_string_length(text), where, out);
	return rh_fail(-EINVAL, "%s: 'pattern' must be {\"String\": text} or {\"Regex\": expression}", where);
}

static int load_bert_normalizer(struct rh_tokenizer *tokenizer, const json_t *part, const char *where)
{
	int cleans = 1, parts_chinese = 1, lowers = 1;
	int rc = rh_json_bool(part, "clean_text", where, RH_JSON_OPTIONAL, &cleans);
	if (!rc)
		rc = rh_json_bool(part, "handle_chinese_chars", where, RH_JSON_OPTIONAL, &parts_chinese);
	if (!rc)
		rc = rh_json_bool(part, "lowercase", where, RH_JSON_OPTIONAL, &lowers);
	int strips = lowers; /* null: as lowercase */
	if (!rc)
		rc = rh_json_bool(part, "strip_accents", where, RH_JSON_OPTIONAL, &strips);
	return rc ? rc : add_bert_normalizer(tokenizer, cleans, parts_chinese, strips, lowers);
}

int load_normalizer(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth)
{
	static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD", "Replace", "Prepend", "Strip", "Lowercase"};
	const char *type;
	int rc = type_of(part, where, "normalizer", depth, &type);
	if (rc || !type)
		return rc;
	if (!strcmp(type, "Sequence"))
		return load_sequence(tokenizer, part, "normalizers", where, depth, load_normalizer);
	if (!strcmp(type, "BertNormalizer"))
		return load_bert_normalizer(tokenizer, part, where);
	size_t count = sizeof names / sizeof *names, kind = place_of(type, names, count);
	if (kind == count)
		return unsupported(where, "a normalizer", type);
	struct normalizer *step;
	rc = add_normalizer(tokenizer, (enum normalizer_kind)kind, &step);
	if (rc)
		return rc;
	switch (step->kind) {
	case NORMALIZER_REPLACE:
		rc = pattern_member(part, where, &step->pattern);
		return rc ? rc : text_member(part, "content", where, &step->content);
	case NORMALIZER_PREPEND:
		return text_member(part, "prepend", where, &step->content);
	case NORMALIZER_STRIP:
		rc = rh_json_bool(part, "strip_left", where, RH_JSON_REQUIRED, &step->left);
		return rc ? rc : rh_json_bool(part, "strip_right", where, RH_JSON_REQUIRED, &step->right);
	default:
		return 0;
	}
}

/* Of a Split, and of Punctuation, which need not say it. */
static int load_behaviour(struct pre_step *step, const json_t *part, const char *where, enum rh_json_need need)
{
	static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
	const char *name = "Isolated";
	int rc = rh_json_string(part, "behavior", where, need, &name);
	if (rc)
		return rc;
	size_t count = sizeof names / sizeof *names, i = place_of(name, names, count);
	if (i == count)
		return rh_fail(-EINVAL, "%s: a pre_tokenizer's behavior '%s' is not supported", where, name);
	step->behaviour = (enum pre_behaviour)i;
	return 0;
}

static int load_split(struct pre_step *step, const json_t *part, const char *where)
{
	int rc = load_behaviour(step, part, where, RH_JSON_REQUIRED);
	if (rc)
		return rc;
	rc = rh_json_bool(part, "invert", where, RH_JSON_OPTIONAL, &step->invert);
	return rc ? rc : pattern_member(part, where, &step->pattern);
}

/* Of a pre-tokenizer and of a decoder. */
static int load_metaspace(const json_t *part, const char *where, uint32_t *replacement, enum pre_scheme *scheme, int *cut)
{
	static const char *const names[] = {"never", "first", "always"};
	const char *name = "always";
	int prefix = 1;
	*cut = 1;
	int rc = character_member(part, "replacement", where, replacement);
	if (!rc)
		rc = rh_json_bool(part, "add_prefix_space", where, RH_JSON_OPTIONAL, &prefix);
	if (!rc)
		rc = rh_json_string(part, "prepend_scheme", where, RH_JSON_OPTIONAL, &name);
	if (!rc)
		rc = rh_json_bool(part, "split", where, RH_JSON_OPTIONAL, cut);
	if (rc)
		return rc;
	size_t i = place_of(name, names, 3);
	if (i == 3)
		return rh_fail(-EINVAL, "%s: a Metaspace's prepend_scheme '%s' is not supported", where, name);
	if (!prefix && i != PRE_NEVER)
		return rh_fail(-EINVAL, "%s: a Metaspace's add_prefix_space false contradicts its prepend_scheme '%s'", where, name);
	*scheme = (enum pre_scheme)i;
	return 0;
}

static int load_byte_level(struct rh_tokenizer *tokenizer, const json_t *part, const char *where)
{
	int prefix = 0, expression = 1;
	struct pre_step *step;
	int rc = rh_json_bool(part, "add_prefix_space", where, RH_JSON_REQUIRED, &prefix);
	if (!rc)
		rc = rh_json_bool(part, "use_regex", where, RH_JSON_OPTIONAL, &expression);
	if (!rc && prefix)
		rc = add_pre_step(tokenizer, PRE_PREFIX_SPACE, &step);
	if (!rc && expression) {
		rc = add_pre_step(tokenizer, PRE_SPLIT, &step);
		if (!rc) {
			step->behaviour = PRE_ISOLATED;
			rc = pattern_compile(pre_gpt2_expression, strlen(pre_gpt2_expression), where, &step->pattern);
		}
	}
	return rc ? rc : add_pre_step(tokenizer, PRE_BYTES, &step);
}

int load_pre_tokenizer(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth)
{
	const char *type;
	struct pre_step *step;
	int rc = type_of(part, where, "pre_tokenizer", depth, &type);
	if (rc || !type)
		return rc;
	if (!strcmp(type, "Sequence"))
		return load_sequence(tokenizer, part, "pretokenizers", where, depth, load_pre_tokenizer);
	if (!strcmp(type, "ByteLevel"))
		return load_byte_level(tokenizer, part, where);
	if (!strcmp(type, "Split")) {
		rc = add_pre_step(tokenizer, PRE_SPLIT, &step);
		return rc ? rc : load_split(step, part, where);
	}
	if (!strcmp(type, "BertPreTokenizer"))
		return add_pre_step(tokenizer, PRE_BERT, &step);
	if (!strcmp(type, "Digits")) {
		int individual = 0;
		rc = rh_json_bool(part, "individual_digits", where, RH_JSON_REQUIRED, &individual);
		if (!rc)
			rc = add_pre_step(tokenizer, PRE_DIGITS, &step);
		if (!rc)
			step->behaviour = individual ? PRE_ISOLATED : PRE_CONTIGUOUS;
		return rc;
	}
	if (!strcmp(type, "Punctuation")) {
		rc = add_pre_step(tokenizer, PRE_PUNCTUATION, &step);
		return rc ? rc : load_behaviour(step, part, where, RH_JSON_OPTIONAL);
	}
	if (!strcmp(type, "Metaspace")) {
		uint32_t replacement;
		rc = add_pre_step(tokenizer, PRE_METASPACE, &step);
		if (!rc)
			rc = load_metaspace(part, where, &replacement, &step->scheme, &step->cut);
		if (!rc)
			utf8_put(replacement, step->replacement);
		return rc;
	}
	return unsupported(where, "a pre_tokenizer", type);
}

int load_decoder(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth)
{
	static const char *const names[] = {"ByteLevel", "Metaspace", "ByteFallback", "Fuse", "Replace", "Strip", "WordPiece"};
	const char *type;
	int rc = type_of(part, where, "decoder", depth, &type);
	if (rc || !type)
		return rc;
	tokenizer->decoders.present = 1;
	if (!strcmp(type, "Sequence"))
		return load_sequence(tokenizer, part, "decoders", where, depth, load_decoder);
	size_t count = sizeof names / sizeof *names, kind = place_of(type, names, count);
	if (kind == count)
		return unsupported(where, "a decoder", type);
	struct decoder *step;
	rc = add_decoder(tokenizer, (enum decoder_kind)kind, &step);
	if (rc)
		return rc;
	if (step->kind == DECODER_REPLACE) {
		rc = pattern_member(part, where, &step->pattern);
		return rc ? rc : text_member(part, "content", where, &step->content);
	}
	if (step->kind == DECODER_STRIP) {
		rc = character_member(part, "content", where, &step->point);
		if (!rc)
			rc = rh_json_int(part, "start", where, RH_JSON_REQUIRED, &step->start);
		return rc ? rc : rh_json_int(part, "stop", where, RH_JSON_REQUIRED, &step->stop);
	}
	if (step->kind == DECODER_WORD_PIECE) {
		rc = text_member(part, "prefix", where, &step->content);
		step->cleans = 1;
		return rc ? rc : rh_json_bool(part, "cleanup", where, RH_JSON_OPTIONAL, &step->cleans);
	}
	if (step->kind == DECODER_METASPACE) {
		enum pre_scheme scheme = PRE_ALWAYS;
		int cut;
		rc = load_metaspace(part, where, &step->point, &scheme, &cut);
		step->drop_first = scheme != PRE_NEVER;
	}
	return rc;
}

/* The ids that a template's special token stands for. */
static int template_token(struct rh_tokenizer *tokenizer, const json_t *part, const char *name, const char *where)
{
	const json_t *ids = json_object_get(json_object_get(json_object_get(part, "special_tokens"), name), "ids");
	if (!json_is_array(ids))
		return rh_fail(-EINVAL, "%s: a TemplateProcessing names '%s', which its special_tokens lack", where, name);
	int rc = 0;
	for (size_t i = 0; i < json_array_size(ids) && !rc; i++) {
		const json_t *id = json_array_get(ids, i);
		json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
		if (value < 0 || value >= VOCAB_IDS || !rh_tokenizer_text(tokenizer, (int32_t)value))
			rc = rh_fail(-EINVAL, "%s: a TemplateProcessing's token '%s' has an id that is not in the vocabulary", where, name);
		else
			rc = ids_add(&tokenizer->template, (int32_t)value);
	}
	return rc;
}

static int load_template(struct rh_tokenizer *tokenizer, const json_t *part, const char *where)
{
	const json_t *single = json_object_get(part, "single");
	if (tokenizer->template.count)
		return rh_fail(-EINVAL, "%s: a post_processor with two TemplateProcessing is not supported", where);
	if (!json_is_array(single) || !json_array_size(single))
		return rh_fail(-EINVAL, "%s: a TemplateProcessing lacks its list 'single'", where);
	int rc = 0;
	for (size_t i = 0; i < json_array_size(single) && !rc; i++) {
		const json_t *piece = json_array_get(single, i);
		const json_t *text = json_object_get(piece, "Sequence"), *token = json_object_get(piece, "SpecialToken");
		const char *name = NULL;
		rc = rh_json_string(text ? text : token, "id", where, RH_JSON_REQUIRED, &name);
		if (!rc && text)
			rc = strcmp(name, "A") ? rh_fail(-EINVAL, "%s: a TemplateProcessing's single names sequence '%s'", where, name)
			                       : ids_add(&tokenizer->template, TEMPLATE_TEXT);
		else if (!rc)
			rc = template_token(tokenizer, part, name, where);
	}
	if (!rc && !tokenizer->template.count)
		rc = rh_fail(-EINVAL, "%s: a TemplateProcessing's single is empty", where);
	return rc;
}

/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]}: of a single text cls, text, sep. */
static int load_bert_post(struct rh_tokenizer *tokenizer, const json_t *part, const char *where)
{
	static const char *const keys[] = {"cls", "sep"};
	int32_t id[2];
	for (int i = 0; i < 2; i++) {
		const json_t *number = json_array_get(json_object_get(part, keys[i]), 1);
		json_int_t value = json_is_integer(number) ? json_integer_value(number) : -1;
		if (value < 0 || value >= VOCAB_IDS || !rh_tokenizer_text(tokenizer, (int32_t)value))
			return rh_fail(-EINVAL, "%s: a BertProcessing's '%s' is no token of the vocabulary with its id", where, keys[i]);
		id[i] = (int32_t)value;
	}
	return set_template(tokenizer, id[0], id[1]);
}

int load_post_processor(struct rh_tokenizer *tokenizer, const json_t *part, const char *where, int depth)
{
	const char *type;
	int rc = type_of(part, where, "post_processor", depth, &type);
	if (rc || !type)
		return rc;
	if (!strcmp(type, "Sequence"))
		return load_sequence(tokenizer, part, "processors", where, depth, load_post_processor);
	if (!strcmp(type, "BertProcessing"))
		return load_bert_post(tokenizer, part, where);
	if (!strcmp(type, "TemplateProcessing"))
		return load_template(tokenizer, part, where);
	if (!strcmp(type, "ByteLevel")) /* moves offsets only, which nobody here reads */
		return 0;
	return unsupported(where, "a post_processor", type);
}
