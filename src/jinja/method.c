/* Methods of dict, list, loop, cycler; those of str are in method_string.c. Methods that change an object are not here: the sandbox. */
#include "jinja/jinja_internal.h"

#include <string.h>

static void need_none(struct jinja *j, const struct jinja_call *call, const char *name)
{
	if (call->count + call->keywords)
		jinja_raise(&j->arena, "%s() takes no arguments (%zu given)", name, call->count + call->keywords);
}

static struct jinja_value view(struct jinja *j, const char *type)
{
	struct jinja_value value = jinja_new_list(j, JINJA_VIEW);
	value.content.list->type = type;
	return value;
}

static struct jinja_value dict_items(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "dict.items");
	struct jinja_value items = view(j, "dict_items");
	for (size_t i = 0; i < self.content.dict->count; i++)
		jinja_push(j, items.content.list, jinja_pair_of(j, self.content.dict->pair[i].key, self.content.dict->pair[i].value));
	return items;
}

static struct jinja_value dict_keys(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "dict.keys");
	struct jinja_value keys = view(j, "dict_keys");
	for (size_t i = 0; i < self.content.dict->count; i++)
		jinja_push(j, keys.content.list, self.content.dict->pair[i].key);
	return keys;
}

static struct jinja_value dict_values(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "dict.values");
	struct jinja_value values = view(j, "dict_values");
	for (size_t i = 0; i < self.content.dict->count; i++)
		jinja_push(j, values.content.list, self.content.dict->pair[i].value);
	return values;
}

static struct jinja_value dict_get(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	if (call->keywords)
		jinja_raise(&j->arena, "dict.get() takes no keyword arguments");
	if (call->count < 1 || call->count > 2)
		jinja_raise(&j->arena,
		            call->count ? "get expected at most 2 arguments, got %zu" : "get expected at least 1 argument, got %zu",
		            call->count);
	const struct jinja_value *found = jinja_dict_find(j, self.content.dict, call->argument[0]);
	return found ? *found : call->count > 1 ? call->argument[1] : jinja_none();
}

static struct jinja_value dict_copy(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "dict.copy");
	struct jinja_value copy = jinja_new_dict(j, JINJA_DICT);
	for (size_t i = 0; i < self.content.dict->count; i++)
		jinja_dict_set(j, copy.content.dict, self.content.dict->pair[i].key, self.content.dict->pair[i].value);
	return copy;
}

static struct jinja_value list_count(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	int64_t count = 0;
	if (call->count != 1)
		jinja_raise(&j->arena, "%s.count() takes exactly one argument (%zu given)", jinja_type(self), call->count);
	for (size_t i = 0; i < self.content.list->count; i++)
		count += jinja_equal(j, self.content.list->item[i], call->argument[0]);
	return jinja_int(count);
}

static struct jinja_value list_index(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	if (!call->count)
		jinja_raise(&j->arena, "index expected at least 1 argument, got 0");
	for (size_t i = 0; i < self.content.list->count; i++)
		if (jinja_equal(j, self.content.list->item[i], call->argument[0]))
			return jinja_int((int64_t)i);
	if (self.kind == JINJA_TUPLE)
		jinja_raise(&j->arena, "tuple.index(x): x not in tuple");
	jinja_raise(&j->arena, "%s is not in list", jinja_repr(j, call->argument[0]));
}

static struct jinja_value list_copy(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "list.copy");
	struct jinja_value copy = jinja_new_list(j, JINJA_LIST);
	for (size_t i = 0; i < self.content.list->count; i++)
		jinja_push(j, copy.content.list, self.content.list->item[i]);
	return copy;
}

static struct jinja_value loop_cycle(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	if (!call->count)
		jinja_raise(&j->arena, "no items for cycling given");
	return call->argument[self.content.loop->index0 % call->count];
}

static struct jinja_value loop_changed(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	struct jinja_value now = jinja_new_list(j, JINJA_TUPLE);
	for (size_t i = 0; i < call->count; i++)
		jinja_push(j, now.content.list, call->argument[i]);
	int is_changed = !jinja_equal(j, self.content.loop->changed, now);
	self.content.loop->changed = now;
	return jinja_bool(is_changed);
}

static struct jinja_value cycler_next(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "next");
	struct jinja_cycler *cycler = self.content.cycler;
	struct jinja_value value = cycler->list->item[cycler->next];
	cycler->next = (cycler->next + 1) % cycler->list->count;
	return value;
}

static struct jinja_value cycler_reset(struct jinja *j, struct jinja_value self, const struct jinja_call *call)
{
	need_none(j, call, "reset");
	self.content.cycler->next = 0;
	return jinja_none();
}

static const struct {
	enum jinja_kind kind;
	struct jinja_method_form form;
} methods[] = {
        {JINJA_DICT, {"items", dict_items}},     {JINJA_DICT, {"keys", dict_keys}},     {JINJA_DICT, {"values", dict_values}},
        {JINJA_DICT, {"get", dict_get}},         {JINJA_DICT, {"copy", dict_copy}},     {JINJA_LIST, {"count", list_count}},
        {JINJA_LIST, {"index", list_index}},     {JINJA_LIST, {"copy", list_copy}},     {JINJA_TUPLE, {"count", list_count}},
        {JINJA_TUPLE, {"index", list_index}},    {JINJA_RANGE, {"count", list_count}},  {JINJA_LOOP, {"cycle", loop_cycle}},
        {JINJA_LOOP, {"changed", loop_changed}}, {JINJA_CYCLER, {"next", cycler_next}}, {JINJA_CYCLER, {"reset", cycler_reset}},
};

const struct jinja_method_form *jinja_find_method(struct jinja_value object, const char *name)
{
	if (object.kind == JINJA_STRING)
		return jinja_find_string_method(name);
	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
		if (methods[i].kind == object.kind && !strcmp(methods[i].form.name, name))
			return &methods[i].form;
	return NULL;
}
