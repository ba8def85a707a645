/* Values as written, with where they were written. */
#include "config/config_internal.h"

#include "core/alloc.h"
#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SUGGESTION_BYTES = 600 };

int config_list_append(struct rh_list *list, const char *text)
{
	int rc = rh_grow(&list->item, &list->capacity, list->count + 1, sizeof *list->item);
	if (rc)
		return rc;
	char *copy = rh_strdup(text);
	if (!copy)
		return -ENOMEM;
	list->item[list->count++] = copy;
	return 0;
}

void config_list_free(struct rh_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		rh_free(list->item[i]);
	rh_free(list->item);
	*list = (struct rh_list){0};
}

struct config_shown config_show(const char *text)
{
	struct config_shown shown;
	size_t used = 0;
	for (; *text && used < 200; text++)
		shown.text[used++] = (unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text;
	if (*text) {
		while (used && (shown.text[used - 1] & 0xc0) == 0x80) /* never cut inside a character */
			used--;
		if (used && (shown.text[used - 1] & 0x80))
			used--;
		memcpy(shown.text + used, "...", 3);
		used += 3;
	}
	shown.text[used] = 0;
	return shown;
}

static int fail_at(int code, enum config_origin origin, const char *path, int64_t line)
{
	if (origin == ORIGIN_FILE)
		return rh_fail_in(code, "%s:%lld", path, (long long)line);
	return rh_fail_in(code, "command line");
}

int config_entry_fail(const struct config_entry *entry, const char *format, ...)
{
	char message[900];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	int rc = rh_fail(-EINVAL, "%s: %s", config_show(entry->name).text, message);
	return fail_at(rc, entry->origin, entry->path, entry->line);
}

/* All of a file's are told at once, each in a line of its own. */
static int keep_unknown(struct config_entries *entries, const char *suggestion, const char *path, int64_t line)
{
	entries->unknowns++;
	return rh_text_printf(&entries->unknown, "%s:%lld: %s\n", path, (long long)line, suggestion);
}

int config_entries_check(const struct config_entries *entries)
{
	enum { TOLD_MOST = 20 };
	if (!entries->unknowns)
		return 0;
	const char *at = entries->unknown.bytes;
	if (entries->unknowns == 1)
		return rh_fail(-EINVAL, "%.*s", (int)strcspn(at, "\n"), at);
	for (int64_t i = 0; i < entries->unknowns && i < TOLD_MOST; i++, at += strcspn(at, "\n") + 1)
		rh_note("%.*s", (int)strcspn(at, "\n"), at);
	return rh_fail(-EINVAL, "%.*s: %lld unknown keys%s", (int)strcspn(entries->unknown.bytes, ":"), entries->unknown.bytes,
	               (long long)entries->unknowns, entries->unknowns > TOLD_MOST ? ", of which the first are named" : "");
}

static int same_key(const struct config_entry *entry, int key, const char *name)
{
	int prefix = strchr(config_keys[key].name, '*') != NULL;
	return entry->key == key && (!prefix || !strcmp(entry->name, name));
}

int config_entries_add(struct config_entries *entries, const char *name, enum config_origin origin, const char *path, int64_t line,
                       struct config_entry **out)
{
	int key = config_key_find(name);
	if (key < 0) {
		char suggestion[SUGGESTION_BYTES];
		config_suggest(name, entries->verb, origin, suggestion, sizeof suggestion);
		*out = NULL;
		if (origin == ORIGIN_FILE)
			return keep_unknown(entries, suggestion, path, line);
		return fail_at(rh_fail(-EINVAL, "%s", suggestion), origin, path, line);
	}
	for (size_t i = 0; i < entries->count; i++) {
		struct config_entry *other = &entries->entry[i];
		if (other->origin != origin || !same_key(other, key, name))
			continue;
		int rc = rh_fail(-EINVAL, "%s is given twice; remove one", config_show(name).text);
		if (strcmp(name, other->name))
			rc = rh_fail(-EINVAL, "%s is another name of %s, which is given too; remove one", name, other->name);
		return fail_at(rc, origin, path, line);
	}
	int rc = rh_grow(&entries->entry, &entries->capacity, entries->count + 1, sizeof *entries->entry);
	if (rc)
		return rc;
	char *copy = rh_strdup(name);
	if (!copy)
		return -ENOMEM;
	struct config_entry *entry = &entries->entry[entries->count++];
	*entry = (struct config_entry){.key = key, .name = copy, .origin = origin, .path = path, .line = line};
	*out = entry;
	return 0;
}

void config_entries_free(struct config_entries *entries)
{
	for (size_t i = 0; i < entries->count; i++) {
		rh_free(entries->entry[i].name);
		rh_free(entries->entry[i].text);
		config_list_free(&entries->entry[i].items);
	}
	rh_free(entries->entry);
	rh_text_free(&entries->unknown);
	*entries = (struct config_entries){0};
}

/* Length of the character at `at`, 0 if it is not valid UTF-8. */
static size_t character_length(const unsigned char *at)
{
	static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
	if (*at < 0x80)
		return 1;
	size_t length = *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : 2;
	if (*at < 0xc2 || *at > 0xf4)
		return 0;
	unsigned code = *at & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (at[i] & 0x3fu);
	}
	return code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : length;
}

int config_utf8_valid(const char *text)
{
	for (const unsigned char *at = (const unsigned char *)text; *at;) {
		size_t length = character_length(at);
		if (!length)
			return 0;
		at += length;
	}
	return 1;
}
