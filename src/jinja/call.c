/* Calls: arguments, macros, global functions, loops and cyclers called. */
#include "jinja/jinja_internal.h"

#include <string.h>
#include <time.h>

enum { RANGE_MOST = 100000 };

struct jinja_value jinja_argument(const struct jinja_call *call, size_t index, const char *name)
{
	if (index < call->count)
		return call->argument[index];
	for (size_t i = 0; name && i < call->keywords; i++)
		if (jinja_is_text(call->keyword[i].key, name))
			return call->keyword[i].value;
	return (struct jinja_value){.kind = JINJA_MISSING};
}

int64_t jinja_argument_int(struct jinja *j, const struct jinja_call *call, size_t index, const char *name, int64_t otherwise)
{
	struct jinja_value value = jinja_argument(call, index, name);
	if (value.kind == JINJA_MISSING || value.kind == JINJA_NONE)
		return otherwise;
	jinja_need_defined(j, value);
	return jinja_index(j, value);
}

int jinja_argument_bool(struct jinja *j, const struct jinja_call *call, size_t index, const char *name, int otherwise)
{
	struct jinja_value value = jinja_argument(call, index, name);
	return value.kind == JINJA_MISSING ? otherwise : jinja_truth(j, value);
}

struct jinja_string jinja_argument_text(struct jinja *j, const struct jinja_call *call, size_t index, const char *name,
                                        const char *otherwise)
{
	struct jinja_value value = jinja_argument(call, index, name);
	if (value.kind == JINJA_MISSING)
		return (struct jinja_string){otherwise, strlen(otherwise)};
	return jinja_str(j, value);
}

void jinja_need_count(struct jinja *j, const struct jinja_call *call, const char *name, size_t least, size_t most)
{
	size_t given = call->count + call->keywords;
	if (given < least)
		jinja_raise(&j->arena, "%s() takes at least %zu argument%s (%zu given)", name, least, least == 1 ? "" : "s", given);
	if (given > most)
		jinja_raise(&j->arena, "%s() takes at most %zu argument%s (%zu given)", name, most, most == 1 ? "" : "s", given);
}

/* Refuses keywords of other names than `but` (NULL: all). */
static void need_no_keyword(struct jinja *j, const struct jinja_call *call, const char *name, const char *but)
{
	for (size_t i = 0; i < call->keywords; i++)
		if (!but || !jinja_is_text(call->keyword[i].key, but))
			jinja_raise(&j->arena, "%s() got an unexpected keyword argument %s", name, jinja_repr(j, call->keyword[i].key));
}

static struct jinja_value keyword_dict(struct jinja *j, const struct jinja_call *call, const uint8_t *used)
{
	struct jinja_value dict = jinja_new_dict(j, JINJA_DICT);
	for (size_t i = 0; i < call->keywords; i++)
		if (!used[i])
			jinja_dict_set(j, dict.content.dict, call->keyword[i].key, call->keyword[i].value);
	return dict;
}

/* Takes a keyword's value; MISSING: it is not given. */
static struct jinja_value take_keyword(const struct jinja_call *call, uint8_t *used, const char *name)
{
	for (size_t i = 0; i < call->keywords; i++)
		if (!used[i] && jinja_is_text(call->keyword[i].key, name)) {
			used[i] = 1;
			return call->keyword[i].value;
		}
	return (struct jinja_value){.kind = JINJA_MISSING};
}

static void bind_special(struct jinja *j, const struct jinja_macro_form *form, struct jinja_scope *scope, const struct jinja_call *call,
                         uint8_t *used)
{
	size_t positional = form->parameters.count;
	if (form->reads_caller) {
		struct jinja_value caller = take_keyword(call, used, "caller");
		jinja_assign(j, scope, j->form->caller,
		             caller.kind == JINJA_MISSING ? jinja_undefined_hint(j, "No caller defined") : caller);
	}
	if (form->reads_kwargs)
		jinja_assign(j, scope, j->form->kwargs, keyword_dict(j, call, used));
	for (size_t i = 0; !form->reads_kwargs && i < call->keywords; i++)
		if (!used[i])
			jinja_raise(&j->arena, "macro %s takes no keyword argument %s",
			            form->name ? jinja_repr(j, jinja_text(j, form->name->name)) : "None",
			            jinja_repr(j, call->keyword[i].key));
	if (form->reads_varargs) {
		struct jinja_value rest = jinja_new_list(j, JINJA_TUPLE);
		for (size_t i = positional; i < call->count; i++)
			jinja_push(j, rest.content.list, call->argument[i]);
		jinja_assign(j, scope, j->form->varargs, rest);
	} else if (call->count > positional) {
		jinja_raise(&j->arena, "macro %s takes not more than %zu argument(s)",
		            form->name ? jinja_repr(j, jinja_text(j, form->name->name)) : "None", positional);
	}
}

static struct jinja_value call_macro(struct jinja *j, const struct jinja_macro *macro, const struct jinja_call *call)
{
	const struct jinja_macro_form *form = macro->form;
	struct jinja_scope *scope = jinja_scope_open(j, macro->scope), *outer = j->scope;
	uint8_t *used = jinja_take(&j->arena, call->keywords + 1, 1);
	struct jinja_value *given = jinja_take(&j->arena, form->parameters.count + 1, sizeof *given);
	for (size_t i = 0; i < form->parameters.count; i++)
		given[i] = i < call->count ? call->argument[i] : take_keyword(call, used, form->parameters.node[i]->name->name);
	bind_special(j, form, scope, call, used);
	j->scope = scope;
	for (size_t i = 0; i < form->parameters.count; i++) {
		const struct jinja_node *parameter = form->parameters.node[i];
		if (given[i].kind == JINJA_MISSING && parameter->right)
			given[i] = jinja_evaluate(j, parameter->right);
		else if (given[i].kind == JINJA_MISSING)
			given[i] = jinja_undefined_hint(j, "parameter '%.80s' was not provided", parameter->name->name);
		jinja_assign(j, scope, parameter->name, given[i]);
	}
	j->scope = outer;
	return jinja_capture(j, &form->body, scope);
}

struct jinja_value jinja_call_value(struct jinja *j, struct jinja_value callee, const struct jinja_call *call)
{
	struct jinja_value result;
	jinja_enter(j);
	switch (callee.kind) {
	case JINJA_UNDEFINED:
		jinja_raise_undefined(j, callee);
	case JINJA_MACRO:
		result = call_macro(j, callee.content.macro, call);
		break;
	case JINJA_FUNCTION:
		result = callee.content.function->call(j, call);
		break;
	case JINJA_METHOD:
		result = callee.content.method->form->call(j, callee.content.method->self, call);
		break;
	case JINJA_LOOP:
		if (!callee.content.loop->node || !callee.content.loop->node->is_flagged)
			jinja_raise(&j->arena, "The loop must have the 'recursive' marker to be called recursively.");
		need_no_keyword(j, call, "LoopContext.__call__", "iterable");
		jinja_need_count(j, call, "loop", 1, 1);
		result = jinja_loop_call(j, callee.content.loop, jinja_argument(call, 0, "iterable"));
		break;
	case JINJA_JOINER:
		result = callee.content.cycler->used ? callee.content.cycler->separator : jinja_text(j, "");
		callee.content.cycler->used = 1;
		break;
	default:
		jinja_raise(&j->arena, "'%s' object is not callable", jinja_type(callee));
	}
	jinja_leave(j);
	return result;
}

static struct jinja_value call_range(struct jinja *j, const struct jinja_call *call)
{
	need_no_keyword(j, call, "safe_range", NULL);
	jinja_need_count(j, call, "range", 1, 3);
	struct jinja_value range = jinja_new_list(j, JINJA_RANGE);
	struct jinja_list *list = range.content.list;
	list->start = call->count > 1 ? jinja_index(j, call->argument[0]) : 0;
	list->stop = jinja_index(j, call->argument[call->count > 1]);
	list->step = call->count > 2 ? jinja_index(j, call->argument[2]) : 1;
	if (!list->step)
		jinja_raise(&j->arena, "range() arg 3 must not be zero");
	__int128 span = list->step > 0 ? (__int128)list->stop - list->start : (__int128)list->start - list->stop;
	__int128 size = list->step > 0 ? list->step : -(__int128)list->step, count = span <= 0 ? 0 : (span + size - 1) / size;
	if (count > RANGE_MOST)
		jinja_raise(&j->arena, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MOST);
	for (int64_t i = 0; i < (int64_t)count; i++)
		jinja_push(j, list, jinja_int(list->start + i * list->step));
	jinja_step(j, (uint64_t)count / 16);
	return range;
}

/* dict(pairs or a dict, **more), also namespace()'s. */
static struct jinja_value make_dict(struct jinja *j, const struct jinja_call *call, enum jinja_kind kind)
{
	struct jinja_value made = jinja_new_dict(j, kind);
	if (call->count > 1)
		jinja_raise(&j->arena, "dict expected at most 1 argument, got %zu", call->count);
	if (call->count && (call->argument[0].kind == JINJA_DICT || call->argument[0].kind == JINJA_NAMESPACE)) {
		const struct jinja_dict *from = call->argument[0].content.dict;
		for (size_t i = 0; i < from->count; i++)
			jinja_dict_set(j, made.content.dict, from->pair[i].key, from->pair[i].value);
	} else if (call->count) {
		const struct jinja_list *pairs = jinja_items(j, call->argument[0]);
		for (size_t i = 0; i < pairs->count; i++) {
			if (pairs->item[i].kind != JINJA_LIST && pairs->item[i].kind != JINJA_TUPLE && pairs->item[i].kind != JINJA_STRING)
				jinja_raise(&j->arena, "cannot convert dictionary update sequence element #%zu to a sequence", i);
			const struct jinja_list *pair = jinja_items(j, pairs->item[i]);
			if (pair->count != 2)
				jinja_raise(&j->arena, "dictionary update sequence element #%zu has length %zu; 2 is required", i,
				            pair->count);
			jinja_dict_set(j, made.content.dict, pair->item[0], pair->item[1]);
		}
	}
	for (size_t i = 0; i < call->keywords; i++)
		jinja_dict_set(j, made.content.dict, call->keyword[i].key, call->keyword[i].value);
	return made;
}

static struct jinja_value call_dict(struct jinja *j, const struct jinja_call *call)
{
	return make_dict(j, call, JINJA_DICT);
}

static struct jinja_value call_namespace(struct jinja *j, const struct jinja_call *call)
{
	struct jinja_value made = make_dict(j, call, JINJA_NAMESPACE);
	for (size_t i = 0; i < made.content.dict->count; i++)
		if (made.content.dict->pair[i].key.kind == JINJA_STRING && *made.content.dict->pair[i].key.content.string->bytes == '_' &&
		    made.content.dict->pair[i].key.content.string->length)
			jinja_raise(
			        &j->arena,
			        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. Please rename the "
			        "attribute.",
			        jinja_repr(j, made.content.dict->pair[i].key));
	return made;
}

static struct jinja_value call_cycler(struct jinja *j, const struct jinja_call *call)
{
	struct jinja_cycler *cycler = jinja_take(&j->arena, 1, sizeof *cycler);
	if (!call->count)
		jinja_raise(&j->arena, "at least one item has to be provided");
	cycler->list = jinja_take(&j->arena, 1, sizeof *cycler->list);
	for (size_t i = 0; i < call->count; i++)
		jinja_push(j, cycler->list, call->argument[i]);
	return (struct jinja_value){.kind = JINJA_CYCLER, .content.cycler = cycler};
}

static struct jinja_value call_joiner(struct jinja *j, const struct jinja_call *call)
{
	struct jinja_cycler *joiner = jinja_take(&j->arena, 1, sizeof *joiner);
	struct jinja_value separator = jinja_argument(call, 0, "sep");
	joiner->separator = separator.kind == JINJA_MISSING ? jinja_text(j, ", ") : separator;
	return (struct jinja_value){.kind = JINJA_JOINER, .content.cycler = joiner};
}

static noreturn struct jinja_value call_raise(struct jinja *j, const struct jinja_call *call)
{
	jinja_need_count(j, call, "raise_exception", 1, 1);
	struct jinja_value message = jinja_argument(call, 0, "message");
	struct jinja_string text = jinja_str(j, message);
	if (message.kind == JINJA_NONE) /* an exception of no message */
		text.length = 4;
	jinja_raise_bytes(&j->arena, text.bytes, text.length);
}

static struct jinja_value call_strftime(struct jinja *j, const struct jinja_call *call)
{
	struct tm date = {0};
	char *text = jinja_take(&j->arena, 512, 1);
	jinja_need_count(j, call, "strftime_now", 1, 1);
	struct jinja_value form = jinja_argument(call, 0, "format");
	if (form.kind != JINJA_STRING)
		jinja_raise(&j->arena, "strftime() argument 1 must be str, not %s", jinja_type(form));
	if (!j->input->date || !strptime(j->input->date, "%Y-%m-%d", &date))
		jinja_raise(&j->arena, "no date is given to strftime_now");
	char *copy = jinja_take(&j->arena, form.content.string->length + 1, 1);
	memcpy(copy, form.content.string->bytes, form.content.string->length);
	if (!*copy)
		return jinja_text(j, "");
	size_t length = strftime(text, 512, copy, &date); /* of a const format: templates' own, which strftime reads safely */
	return jinja_string(j, text, length);
}

static const struct jinja_function functions[] = {
        {"range", call_range},           {"dict", call_dict},     {"namespace", call_namespace},
        {"cycler", call_cycler},         {"joiner", call_joiner}, {"raise_exception", call_raise},
        {"strftime_now", call_strftime},
};

struct jinja_value jinja_find_global(struct jinja *j, const char *name)
{
	(void)j;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(functions[i].name, name))
			return (struct jinja_value){.kind = JINJA_FUNCTION, .content.function = &functions[i]};
	return (struct jinja_value){.kind = JINJA_MISSING};
}
