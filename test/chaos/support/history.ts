import { SHARED } from './model';
import { doneOnce, onlyNewest } from './policies';

/** What processes wrote down in a storm, and what must be true of it. */

/** How a key is used: in turn; by one who does it for all; by the newest only; as one of several that are taken together. */
export type Kind = 'turn' | 'once' | 'newest' | 'list';

export interface Note {
  what: 'ask' | 'place' | 'got' | 'begin' | 'beat' | 'end' | 'released' | 'out' | 'failed' | 'unhandled' | 'stopped' | 'continued' | 'killed';
  process: string;
  at: number;
  id?: string;
  key?: string;
  /** Holders at once that the asker allows; a writer 1, readers a million. */
  limit?: number;
  kind?: Kind;
  ticket?: number;
  token?: number;
  expiresAt?: number;
  revived?: boolean;
  value?: number;
  wrote?: number;
  outcome?: string;
  /** Of one that gives the lock back: what it was for is done. */
  done?: boolean;
  /** Of one told that it was done before: the token with which it was. */
  doneBefore?: number;
  /** Of one that was put out of the line: the id of the newer one. */
  supersededBy?: string;
}

/** A process has so long to claim what it was handed. */
const CLAIM_MS = 3000;

interface Span {
  from: number;
  to: number;
}

/** One acquire (of several keys: of each) and what came of it. Moments in ms, ticket and token in µs, all by Redis' clock. */
export interface Attempt {
  id: string;
  key: string;
  kind: Kind;
  limit: number;
  process: string;
  asked: number;
  ticket?: number;
  token?: number;
  got?: number;
  begin?: number;
  read?: number;
  end?: number;
  wrote?: number;
  released?: number;
  markedDone?: boolean;
  doneBefore?: number;
  supersededBy?: string;
  /** Times at which its lease was in force, as it was told by Redis. */
  leases: Span[];
}

export interface Verdict {
  sections: number;
  kept: number;
  handOffs: number;
  updatesChecked: number;
  ordered: number;
  /** Who had to leave the line, and sections of each kind of use. */
  superseded: number;
  doneBefore: number;
  kinds: Partial<Record<Kind | 'shared' | 'permits', number>>;
  /** Ms between the end of a hold and the next holder's knowing of it, while an undisturbed caller waited. */
  gaps: { median: number; p99: number; max: number };
  faults: string[];
}

const overlap = (a: Span, b: Span) => a.from < b.to && b.from < a.to;

export class History {
  private readonly attempts = new Map<string, Attempt>();
  private readonly frozen = new Map<string, Span[]>();
  private readonly killed = new Map<string, number>();
  private readonly faults: string[] = [];

  constructor(
    notes: Note[],
    private readonly ttlMs: number,
  ) {
    for (const note of notes) this.read(note);
  }

  check(boundMs: number): Verdict {
    const { faults } = this;
    const all = [...this.attempts.values()];
    const superseded = all.filter((attempt) => attempt.supersededBy !== undefined).length;
    const doneBefore = all.filter((attempt) => attempt.doneBefore !== undefined).length;
    const verdict: Verdict = { sections: 0, kept: 0, handOffs: 0, updatesChecked: 0, ordered: 0, superseded, doneBefore, kinds: {}, gaps: { median: 0, p99: 0, max: 0 }, faults };
    const byKey = new Map<string, Attempt[]>();
    for (const { key } of all) byKey.set(key, []);
    for (const attempt of all) byKey.get(attempt.key)!.push(attempt);
    const gaps = [...byKey].flatMap(([key, attempts]) => this.checkKey(key, attempts, boundMs, verdict));
    gaps.sort((a, b) => a - b);
    const at = (share: number) => gaps[Math.min(gaps.length - 1, Math.floor(gaps.length * share))] ?? 0;
    verdict.handOffs = gaps.length;
    verdict.gaps = { median: at(0.5), p99: at(0.99), max: at(1) };
    return verdict;
  }

  /** @returns the gaps, see `Verdict` */
  private checkKey(key: string, attempts: Attempt[], boundMs: number, verdict: Verdict): number[] {
    const granted = attempts.filter(({ token }) => token !== undefined).sort((a, b) => Number(a.token) - Number(b.token));
    const sections = granted.filter(({ begin }) => begin !== undefined);
    const [{ kind }] = attempts as [Attempt];
    for (const { limit, end } of sections) {
      if (end === undefined) continue;
      const name = isWriter({ limit }) || kind !== 'turn' ? kind : limit === SHARED ? 'shared' : 'permits';
      verdict.sections += 1;
      verdict.kinds[name] = (verdict.kinds[name] ?? 0) + 1;
    }
    verdict.kept += sections.filter((section) => this.wasKept(section)).length;
    this.tokensGrow(key, granted);
    this.noMoreThanAllowed(key, sections);
    verdict.ordered += this.inOrder(key, granted);
    if (kind === 'once') this.faults.push(...doneOnce(key, attempts));
    if (kind === 'newest') this.faults.push(...onlyNewest(key, attempts));
    if (!granted.some(isWriter)) return [];
    verdict.updatesChecked += this.noLostUpdate(key, sections);
    // Who takes several knows of the first only when it has all.
    return kind === 'list' ? [] : this.gaps(key, granted, boundMs);
  }

  /** Each grant is a new token, and whoever was granted later in time has the larger one. */
  private tokensGrow(key: string, granted: Attempt[]): void {
    for (const [i, attempt] of granted.entries()) {
      if (i > 0 && attempt.token === granted[i - 1]!.token) this.faults.push(`${key}: token ${attempt.token} twice`);
      // A grant is not younger than its token, nor is it known before.
      if (Number(attempt.got) * 1000 + 1000 < Number(attempt.token)) this.faults.push(`${key}: token ${attempt.token} from the future`);
    }
    // Sections of a mutex that were kept come one after the other, and so do their tokens.
    if (!granted.every(isWriter)) return;
    const kept = granted.filter((attempt) => this.wasKept(attempt)).sort((a, b) => Number(a.begin) - Number(b.begin) || Number(a.token) - Number(b.token));
    for (const [i, b] of kept.entries()) {
      const a = kept[i - 1];
      if (a && Number(a.token) > Number(b.token)) this.faults.push(`${key}: ${a.id} came before ${b.id} with a larger token`);
    }
  }

  /** At no moment are there more sections with a valid lease than each of them allows. */
  private noMoreThanAllowed(key: string, sections: Attempt[]): void {
    const marks = sections.flatMap((section) =>
      this.valid(section).flatMap(({ from, to }) => [
        { at: from, change: 1, section },
        { at: to, change: -1, section },
      ]),
    );
    // At the same ms an end comes first: a lease ends at the start of its last ms.
    marks.sort((a, b) => a.at - b.at || a.change - b.change);
    const inside = new Set<Attempt>();
    for (const { change, section } of marks) {
      if (change < 0) inside.delete(section);
      else inside.add(section);
      if (change > 0 && inside.size > Math.min(...[...inside].map(({ limit }) => limit))) this.faults.push(`${key}: ${[...inside].map(({ id }) => id).join(', ')} at once`);
    }
  }

  /**
   * Arrival is the ticket of who had to wait, else the moment of the grant; undisturbed is whose process was not stopped
   * between asking and getting. Of two undisturbed, the first to arrive has the smaller token.
   */
  private inOrder(key: string, granted: Attempt[]): number {
    const fair = granted.filter((attempt) => !this.wasDisturbed(attempt));
    const arrival = ({ ticket, token }: Attempt) => ticket ?? Number(token);
    fair.sort((a, b) => arrival(a) - arrival(b));
    for (const [i, b] of fair.entries()) {
      const a = fair[i - 1];
      if (a && Number(a.token) > Number(b.token)) this.faults.push(`${key}: ${b.id} (arrived ${arrival(b)}) overtook ${a.id} (arrived ${arrival(a)})`);
    }
    return fair.length;
  }

  /** A kept section reads what the writer before it wrote, unless a writer that was not kept was about meanwhile. */
  private noLostUpdate(key: string, sections: Attempt[]): number {
    const strays = sections.filter((section) => isWriter(section) && !this.wasKept(section)).map((section) => this.presence(section));
    let checked = 0;
    let a: Attempt | undefined;
    for (const b of sections) {
      const span = { from: Number(a?.begin), to: Number(b.end) + 1 };
      if (a && b.read !== undefined && this.wasKept(b) && !strays.some((stray) => overlap(stray, span))) {
        checked += 1;
        if (b.read !== a.wrote) this.faults.push(`${key}: ${a.id} wrote ${a.wrote}, ${b.id} read ${b.read}`);
      }
      if (isWriter(b)) a = this.wasKept(b) ? b : undefined;
    }
    return checked;
  }

  private gaps(key: string, granted: Attempt[], boundMs: number): number[] {
    const waits = granted.filter((attempt) => attempt.ticket !== undefined && !this.wasDisturbed(attempt));
    const gaps: number[] = [];
    // The last that was over of those before: of several readers that need not be the last that came.
    let last: { over: number; id: string } | undefined;
    for (const next of granted) {
      const gap = { from: Number(last?.over), to: Number(next.got) };
      const somebody = last && waits.some((w) => Number(w.ticket) / 1000 <= gap.from && Number(w.got) >= gap.to);
      if (last && somebody) {
        gaps.push(Math.max(0, gap.to - gap.from));
        if (gap.to - gap.from > Math.max(boundMs, this.excused(gap, boundMs))) this.faults.push(`${key}: nobody for ${gap.to - gap.from} ms after ${last.id}, though somebody waited`);
      }
      const over = Math.min(next.released ?? Infinity, next.leases.at(-1)?.to ?? Infinity);
      if (!last || over > last.over) last = { over, id: next.id };
    }
    return gaps;
  }

  /** Each frozen process may have been handed the lock in vain, and each killed one may have just got it. */
  private excused(gap: Span, boundMs: number): number {
    const frozen = [...this.frozen.values()].flat().filter((span) => overlap(span, gap)).length;
    const killed = [...this.killed.values()].filter((at) => gap.from <= at && at <= gap.to).length;
    return frozen * CLAIM_MS + killed * this.ttlMs + (boundMs - 5000);
  }

  private wasDisturbed({ process, asked, got }: Attempt): boolean {
    return (this.frozen.get(process) ?? []).some((span) => overlap(span, { from: asked, to: Number(got) + 1 }));
  }

  /** It ended, and before its lease did. */
  private wasKept({ begin, end, leases, wrote }: Attempt): boolean {
    const last = leases.at(-1);
    return leases.length === 1 && begin !== undefined && end !== undefined && wrote !== undefined && end <= Number(last?.to);
  }

  /** From where to where it may have been at work. */
  private presence({ process, begin, end }: Attempt): Span {
    return { from: Number(begin), to: end ?? this.killed.get(process) ?? Infinity };
  }

  private valid(section: Attempt): Span[] {
    const here = this.presence(section);
    return section.leases
      .map((lease) => ({ from: Math.max(lease.from, here.from), to: Math.min(lease.to, here.to) }))
      .filter(({ from, to }) => from < to);
  }

  private read(note: Note): void {
    const { what, process, at, id = '' } = note;
    if (what === 'ask') {
      const { kind = 'turn', limit = 1 } = note;
      this.attempts.set(id, { id, key: String(note.key), kind, limit, process, asked: at, leases: [] });
      return;
    }
    const spans = this.frozen.get(process) ?? [];
    const attempt = this.attempts.get(id);
    if (what === 'stopped') this.frozen.set(process, [...spans, { from: at, to: Infinity }]);
    else if (what === 'continued' && spans.length) spans.at(-1)!.to = at;
    else if (what === 'killed') this.killed.set(process, at);
    else if (what === 'failed' || what === 'unhandled') this.faults.push(JSON.stringify(note));
    if (!attempt) return;
    if (what === 'place') attempt.ticket = Number(note.ticket);
    if (what === 'got') Object.assign(attempt, { got: at, token: note.token, leases: [{ from: Number(note.token) / 1000, to: Number(note.expiresAt) }] });
    if (what === 'begin') Object.assign(attempt, { begin: at, read: note.value });
    if (what === 'end') Object.assign(attempt, { end: at, wrote: note.wrote });
    if (what === 'released' && note.outcome === 'released') Object.assign(attempt, { released: at, markedDone: note.done });
    if (what === 'out') this.readOut(attempt, note);
    if (what === 'beat' && note.outcome === 'alive') {
      const to = Number(note.expiresAt);
      if (note.revived) attempt.leases.push({ from: to - this.ttlMs, to });
      else attempt.leases.at(-1)!.to = to;
    }
  }
  /** Whoever waits is served or told why not: for those who take several keys anything else is a deadlock. */
  private readOut(attempt: Attempt, { at, outcome, doneBefore, supersededBy }: Note): void {
    Object.assign(attempt, { ...(doneBefore !== undefined && { doneBefore }), ...(supersededBy !== undefined && { supersededBy }) });
    const spared = this.wasDisturbed({ ...attempt, got: at });
    if (outcome === 'timedOut' && attempt.kind !== 'turn' && !spared) this.faults.push(`${attempt.key}: ${attempt.id} waited in vain`);
  }
}

const isWriter = ({ limit }: Pick<Attempt, 'limit'>) => limit === 1;
