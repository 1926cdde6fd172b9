// Small pieces that all views use.
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { Failure } from './api';

const PATHS: Record<string, string> = {
  plus: 'M8 3v10M3 8h10',
  close: 'M4 4l8 8M12 4l-8 8',
  copy: 'M6 6V3.500h6.500V10H10M3.500 6H10v6.500H3.500z',
  eye: 'M1.500 8S4 3.500 8 3.500 14.500 8 14.500 8 12 12.500 8 12.500 1.500 8 1.500 8zM8 9.800a1.800 1.800 0 100-3.600 1.800 1.800 0 000 3.600z',
  hidden: 'M2 2l12 12M6 4a6 6 0 012-.5c4 0 6.500 4.500 6.500 4.500a12 12 0 01-2 2.500M3.700 5.300A12 12 0 001.500 8S4 12.500 8 12.500c.9 0 1.700-.2 2.400-.5',
  left: 'M10 3L5 8l5 5',
  right: 'M6 3l5 5-5 5',
  out: 'M7 12A5 5 0 107 2a5 5 0 000 10zM10.700 10.700L14 14M4.800 7h4.400',
  in: 'M7 12A5 5 0 107 2a5 5 0 000 10zM10.700 10.700L14 14M4.800 7h4.400M7 4.800v4.400',
  reload: 'M13 8a5 5 0 11-1.500-3.500M13 2v3h-3',
  sun: 'M8 11a3 3 0 100-6 3 3 0 000 6zM8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  moon: 'M13.500 9.500A6 6 0 016.500 2.500a6 6 0 107 7z',
  auto: 'M8 14A6 6 0 108 2a6 6 0 000 12zM8 2v12M8 5h4.800M8 8h6M8 11h4.800',
  link: 'M6.500 9.500l3-3M7 4.500l1.500-1.500a2.800 2.800 0 014 4L11 8.500M5 7.500L3.500 9a2.800 2.800 0 004 4L9 11.500',
  down: 'M8 2v8M4.500 7L8 10.500 11.500 7M3 13.500h10',
  gear: 'M8 10a2 2 0 100-4 2 2 0 000 4zM8 1.500v2M8 12.500v2M1.500 8h2M12.500 8h2M3.400 3.400l1.400 1.400M11.200 11.200l1.400 1.400M12.600 3.400l-1.400 1.400M4.800 11.200l-1.400 1.400',
  warn: 'M8 2L1.500 13.500h13zM8 6.500v3M8 11.500v.1',
  search: 'M7 12A5 5 0 107 2a5 5 0 000 10zM10.700 10.700L14 14',
  open: 'M9.500 2.500h4v4M13.500 2.500L8 8M7 3.500H3v9.500h9.500V9',
};

export function Icon({ name }: { name: string }) {
  return <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d={PATHS[name]} /></svg>;
}

interface ButtonProps {
  icon?: string;
  label: string; // shown, or read where there is an icon alone
  bare?: boolean; // the icon alone
  primary?: boolean;
  pressed?: boolean;
  disabled?: boolean;
  small?: boolean;
  id?: string;
  onClick: (e: MouseEvent) => void;
}

export function Button(p: ButtonProps) {
  return (
    <button type="button" id={p.id} class={['btn', p.primary && 'primary', p.bare && 'bare', p.small && 'small'].filter(Boolean).join(' ')}
      title={p.bare ? p.label : undefined} aria-label={p.bare ? p.label : undefined} aria-pressed={p.pressed} disabled={p.disabled} onClick={p.onClick}>
      {p.icon && <Icon name={p.icon} />}
      {!p.bare && p.label}
    </button>
  );
}

/** Choice is a row of buttons of which one is pressed. */
export function Choice<T extends string>({ label, value, options, onChange }: { label: string; value: T; options: [T, string][]; onChange: (v: T) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map(([v, text]) => (
        <button type="button" key={v} aria-pressed={v === value} onClick={() => onChange(v)}>{text}</button>
      ))}
    </div>
  );
}

/** Notice shows words of the process, as they are. */
export function Notice({ kind, title, children }: { kind: 'bad' | 'warn' | 'info'; title?: string; children: ComponentChildren }) {
  return (
    <div class={'notice ' + kind} role={kind === 'bad' ? 'alert' : 'status'}>
      <Icon name="warn" />
      <div>{title && <b>{title} </b>}{children}</div>
    </div>
  );
}

/** Problem shows an error as the API gives it. */
export function Problem({ error, name = '' }: { error: Error; name?: string }) {
  return <Notice kind="bad" title={name + (error instanceof Failure ? error.kind : 'error') + ':'}>{error.message}</Notice>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><h3>{title}</h3>{children && <div class="dim">{children}</div>}</div>;
}

export function Loading({ what }: { what: string }) {
  return <div class="loading" role="status"><span class="spin" /> {what}…</div>;
}

/** Bar is a share of a whole, 0 to 1. */
export function Bar({ share, kind }: { share: number; kind?: 'bad' | 'warn' }) {
  return <span class={'bar' + (kind ? ' ' + kind : '')}><i style={{ width: Math.min(100, Math.max(share > 0 ? 1.5 : 0, share * 100)) + '%' }} /></span>;
}

export function Figure({ label, value, note, id }: { label: string; value: string; note?: string; id?: string }) {
  return (
    <div class="figure">
      <span class="figure-label">{label}</span>
      <span class={'figure-value' + (value === 'unknown' ? ' unknown' : '')} data-figure={id}>{value}</span>
      {note && <span class="figure-note">{note}</span>}
    </div>
  );
}

/** Known writes a value, or `unknown` so that it is seen. */
export function Known({ text }: { text: string }) {
  return text === 'unknown' ? <span class="unknown">unknown</span> : <>{text}</>;
}

/** Menu is a button with a panel below it, closed by Escape and by a click elsewhere. */
export function Menu({ label, icon, bare, children, right, small }: { label: string; icon?: string; bare?: boolean; right?: boolean; small?: boolean; children: (close: () => void) => ComponentChildren }) {
  const [open, set] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => {
    if (!open) return;
    const outside = (e: Event) => !box.current?.contains(e.target as Node) && set(false);
    const escape = (e: KeyboardEvent) => {
      if (e.key !== 'Escape') return;
      set(false);
      box.current?.querySelector('button')?.focus();
    };
    document.addEventListener('pointerdown', outside);
    document.addEventListener('keydown', escape);
    return () => {
      document.removeEventListener('pointerdown', outside);
      document.removeEventListener('keydown', escape);
    };
  }, [open]);
  return (
    <div class="menu" ref={box}>
      <button type="button" class={'btn' + (bare ? ' bare' : '') + (small ? ' small' : '')} aria-haspopup="dialog" aria-expanded={open} aria-controls={id} aria-label={bare ? label : undefined} title={bare ? label : undefined} onClick={() => set(!open)}>
        {icon && <Icon name={icon} />}{!bare && label}
      </button>
      {open && <div id={id} class={'menu-panel' + (right ? ' right' : '')} role="dialog" aria-label={label}>{children(() => set(false))}</div>}
    </div>
  );
}

/** fold puts equal texts together, so that one cause has one banner. */
export function fold(texts: string[]): [string, number][] {
  const seen = new Map<string, number>();
  for (const t of texts) seen.set(t, (seen.get(t) ?? 0) + 1);
  return [...seen];
}
