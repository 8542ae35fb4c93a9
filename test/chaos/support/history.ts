/** What processes wrote down in a storm, and what must be true of it. */

export interface Note {
  what: 'ask' | 'place' | 'got' | 'begin' | 'beat' | 'end' | 'released' | 'out' | 'failed' | 'unhandled' | 'stopped' | 'continued' | 'killed';
  process: string;
  at: number;
  id?: string;
  key?: string;
  ticket?: number;
  token?: number;
  expiresAt?: number;
  revived?: boolean;
  value?: number;
  wrote?: number;
  outcome?: string;
}

/** A process has so long to claim what it was handed. */
const CLAIM_MS = 3000;

interface Span {
  from: number;
  to: number;
}

/** One acquire and what came of it. Moments in ms, ticket and token in µs, all by Redis' clock. */
interface Attempt {
  id: string;
  key: string;
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
  /** Times at which its lease was in force, as it was told by Redis. */
  leases: Span[];
}

export interface Verdict {
  sections: number;
  kept: number;
  handOffs: number;
  updatesChecked: number;
  ordered: number;
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
    private readonly keys: Array<{ key: string; limit: number }>,
    private readonly ttlMs: number,
  ) {
    for (const note of notes) this.read(note);
  }

  check(boundMs: number): Verdict {
    const verdict: Verdict = { sections: 0, kept: 0, handOffs: 0, updatesChecked: 0, ordered: 0, gaps: { median: 0, p99: 0, max: 0 }, faults: this.faults };
    const gaps: number[] = [];
    for (const { key, limit } of this.keys) {
      const granted = [...this.attempts.values()]
        .filter((attempt) => attempt.key === key && attempt.token !== undefined)
        .sort((a, b) => Number(a.token) - Number(b.token));
      const sections = granted.filter(({ begin }) => begin !== undefined);
      verdict.sections += sections.filter(({ end }) => end !== undefined).length;
      verdict.kept += sections.filter((section) => this.wasKept(section)).length;
      this.tokensGrow(key, granted);
      this.noMoreThan(limit, key, sections);
      verdict.ordered += this.inOrder(key, granted);
      if (limit > 1) continue;
      verdict.updatesChecked += this.noLostUpdate(key, sections);
      gaps.push(...this.gaps(key, granted, boundMs));
    }
    gaps.sort((a, b) => a - b);
    const at = (share: number) => gaps[Math.min(gaps.length - 1, Math.floor(gaps.length * share))] ?? 0;
    verdict.handOffs = gaps.length;
    verdict.gaps = { median: at(0.5), p99: at(0.99), max: at(1) };
    return verdict;
  }

  /** Each grant is a new token, and whoever was granted later in time has the larger one. */
  private tokensGrow(key: string, granted: Attempt[]): void {
    for (const [i, attempt] of granted.entries()) {
      if (i > 0 && attempt.token === granted[i - 1]!.token) this.faults.push(`${key}: token ${attempt.token} twice`);
      // A grant is not younger than its token, nor is it known before.
      if (Number(attempt.got) * 1000 + 1000 < Number(attempt.token)) this.faults.push(`${key}: token ${attempt.token} from the future`);
    }
    // Sections of a mutex that were kept come one after the other, and so do their tokens.
    if (this.limit(key) > 1) return;
    const kept = granted.filter((attempt) => this.wasKept(attempt)).sort((a, b) => Number(a.begin) - Number(b.begin) || Number(a.token) - Number(b.token));
    for (const [i, b] of kept.entries()) {
      const a = kept[i - 1];
      if (a && Number(a.token) > Number(b.token)) this.faults.push(`${key}: ${a.id} came before ${b.id} with a larger token`);
    }
  }

  /** At no moment are there more sections with a valid lease than the limit. */
  private noMoreThan(limit: number, key: string, sections: Attempt[]): void {
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
      if (inside.size > limit) this.faults.push(`${key}: ${[...inside].map(({ id }) => id).join(', ')} at once`);
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

  /** A kept section reads what the kept one before it wrote, unless one that was not kept was about meanwhile. */
  private noLostUpdate(key: string, sections: Attempt[]): number {
    const strays = sections.filter((section) => !this.wasKept(section)).map((section) => this.presence(section));
    let checked = 0;
    for (const [i, b] of sections.entries()) {
      const a = sections[i - 1];
      if (!a || !this.wasKept(a) || !this.wasKept(b)) continue;
      if (strays.some((stray) => overlap(stray, { from: Number(a.begin), to: Number(b.end) + 1 }))) continue;
      checked += 1;
      if (b.read !== a.wrote) this.faults.push(`${key}: ${a.id} wrote ${a.wrote}, ${b.id} read ${b.read}`);
    }
    return checked;
  }

  private gaps(key: string, granted: Attempt[], boundMs: number): number[] {
    const waits = granted.filter((attempt) => attempt.ticket !== undefined && !this.wasDisturbed(attempt));
    const gaps: number[] = [];
    for (const [i, next] of granted.entries()) {
      const before = granted[i - 1];
      if (!before) continue;
      const over = Math.min(before.released ?? Infinity, before.leases.at(-1)?.to ?? Infinity);
      const gap = { from: over, to: Number(next.got) };
      const somebody = waits.some((w) => Number(w.ticket) / 1000 <= gap.from && Number(w.got) >= gap.to);
      if (!somebody) continue;
      gaps.push(Math.max(0, gap.to - gap.from));
      if (gap.to - gap.from > Math.max(boundMs, this.excused(gap, boundMs))) this.faults.push(`${key}: nobody for ${gap.to - gap.from} ms after ${before.id}, though somebody waited`);
    }
    return gaps;
  }

  /** Each frozen process may have been handed the lock in vain, and each killed one may have just got it. */
  private excused(gap: Span, boundMs: number): number {
    const frozen = [...this.frozen.values()].flat().filter((span) => overlap(span, gap)).length;
    const killed = [...this.killed.values()].filter((at) => gap.from <= at && at <= gap.to).length;
    return frozen * CLAIM_MS + killed * this.ttlMs + (boundMs - 5000);
  }

  private limit = (key: string) => this.keys.find((known) => known.key === key)?.limit ?? 1;

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
      this.attempts.set(id, { id, key: String(note.key), process, asked: at, leases: [] });
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
    if (what === 'released' && note.outcome === 'released') attempt.released = at;
    if (what === 'beat' && note.outcome === 'alive') {
      const to = Number(note.expiresAt);
      if (note.revived) attempt.leases.push({ from: to - this.ttlMs, to });
      else attempt.leases.at(-1)!.to = to;
    }
  }
}
