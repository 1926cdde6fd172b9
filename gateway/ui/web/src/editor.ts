// The PromQL editor: CodeMirror with completion, highlighting and linting of @prometheus-io/codemirror-promql. It is a
// module of its own, so that the page shows before it is loaded.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap, insertNewlineAndIndent } from '@codemirror/commands';
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from '@codemirror/language';
import { lintKeymap } from '@codemirror/lint';
import { Compartment, EditorState, Prec } from '@codemirror/state';
import { EditorView, keymap, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { PromQLExtension } from '@prometheus-io/codemirror-promql';
import { authorized, base } from './api';

export interface Editor {
  set(text: string): void;
  setTable(table: string): void;
  focus(): void;
  destroy(): void;
}

interface Options {
  parent: HTMLElement;
  text: string;
  table: string;
  label: string;
  onChange(text: string): void;
  onRun(): void;
}

const colours = HighlightStyle.define([
  { tag: tags.number, color: 'var(--code-number)' },
  { tag: tags.string, color: 'var(--code-string)' },
  { tag: tags.keyword, color: 'var(--code-keyword)' },
  { tag: tags.function(tags.variableName), color: 'var(--code-function)' },
  { tag: tags.labelName, color: 'var(--code-label)' },
  { tag: tags.operator, color: 'var(--code-operator)' },
  { tag: tags.modifier, color: 'var(--code-keyword)' },
  { tag: tags.paren, color: 'var(--muted)' },
  { tag: tags.squareBracket, color: 'var(--muted)' },
  { tag: tags.brace, color: 'var(--muted)' },
  { tag: tags.invalid, color: 'var(--bad)' },
  { tag: tags.comment, color: 'var(--muted)', fontStyle: 'italic' },
]);

const look = EditorView.theme({
  '&': { backgroundColor: 'transparent', color: 'var(--text)', fontSize: '13.5px' },
  '&.cm-focused': { outline: 'none' },
  '.cm-content': { fontFamily: 'var(--mono)', padding: '9px 0', caretColor: 'var(--accent)' },
  '.cm-scroller': { lineHeight: '1.45', overflowX: 'auto', maxHeight: '12em' },
  '.cm-line': { padding: '0 10px' },
  '.cm-cursor': { borderLeftColor: 'var(--accent)', borderLeftWidth: '2px' },
  '&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground, ::selection': { backgroundColor: 'var(--select)' },
  '.cm-placeholder': { color: 'var(--faint)' },
  '.cm-matchingBracket, &.cm-focused .cm-matchingBracket': { backgroundColor: 'var(--select)', color: 'inherit' },
  '.cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--text)', border: '1px solid var(--line)', borderRadius: '8px', boxShadow: 'var(--shadow)', overflow: 'hidden' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul': { fontFamily: 'var(--mono)', fontSize: '12.5px', maxHeight: '17em', minWidth: 'min(340px, 80vw)' },
  '.cm-tooltip.cm-tooltip-autocomplete > ul > li': { padding: '3px 10px 3px 4px', display: 'flex', alignItems: 'baseline', gap: '.4em' },
  '.cm-tooltip-autocomplete ul li[aria-selected]': { backgroundColor: 'var(--accent)', color: 'var(--on-accent)' },
  '.cm-completionDetail': { marginLeft: 'auto', paddingLeft: '1.2em', fontStyle: 'normal', opacity: '.65', fontFamily: 'var(--sans)' },
  '.cm-completionMatchedText': { textDecoration: 'none', fontWeight: '700' },
  '.cm-completionIcon': { opacity: '.55' },
  '.cm-tooltip.cm-completionInfo': { padding: '8px 12px', maxWidth: '420px', fontSize: '12.5px' },
  '.cm-diagnostic': { fontSize: '12.5px', padding: '6px 10px' },
  '.cm-diagnostic-error': { borderLeftColor: 'var(--bad)' },
  '.cm-lintRange-error': { backgroundImage: 'none', textDecoration: 'underline wavy var(--bad) 1px', textUnderlineOffset: '3px' },
});

/** openEditor puts an editor into a shadow root of parent, where style sheets need no exception from the page's policy. */
export function openEditor(o: Options): Editor {
  const root = o.parent.shadowRoot ?? o.parent.attachShadow({ mode: 'open' });
  const promql = new Compartment();
  let extension = new PromQLExtension();
  const of = (table: string) => {
    extension.destroy();
    extension = new PromQLExtension().setComplete({
      remote: { url: `${base}t/${encodeURIComponent(table)}`, fetchFn: authorized, httpErrorHandler: () => undefined, cache: { maxAge: 60_000 } },
      maxMetricsMetadata: 2000,
    });
    return extension.asExtension();
  };
  const view = new EditorView({
    parent: root as unknown as HTMLElement,
    root,
    state: EditorState.create({
      doc: o.text,
      extensions: [
        look, syntaxHighlighting(colours), history(), indentOnInput(), bracketMatching(), closeBrackets(), autocompletion(),
        EditorView.lineWrapping, promql.of(of(o.table)),
        placeholder('PromQL: a metric, rate(…[5m]), sum by (label) (…)'),
        EditorView.contentAttributes.of({ 'aria-label': o.label, spellcheck: 'false', autocapitalize: 'off' }),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
        Prec.high(keymap.of([
          { key: 'Enter', run: () => (o.onRun(), true) },
          { key: 'Mod-Enter', run: () => (o.onRun(), true) },
          { key: 'Shift-Enter', run: insertNewlineAndIndent },
        ])),
        Prec.highest(keymap.of(completionKeymap)),
        EditorView.updateListener.of((u) => u.docChanged && o.onChange(u.state.doc.toString())),
      ],
    }),
  });
  return {
    set(text) {
      if (text !== view.state.doc.toString()) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    setTable: (table) => view.dispatch({ effects: promql.reconfigure(of(table)) }),
    focus: () => view.focus(),
    destroy() {
      extension.destroy();
      view.destroy();
    },
  };
}
