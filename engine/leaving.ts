import { MOST_IDS } from './calls';
import type { LockKeys } from './keys';
import type { Report } from './replies';
import type { Leaver, Left, Transitions } from './transitions';

export interface Departure {
  result: Left;
  report: Report;
}

interface Group {
  keys: LockKeys;
  leavers: Leaver[];
  ends: Array<{ resolve: (departure: Departure) => void; reject: (error: unknown) => void }>;
}

/** Waits for one key that end in the same moment leave the line together: a thousand of them cost two scripts. */
export class Leaving {
  private readonly groups = new Map<string, Group>();

  constructor(private readonly transitions: Transitions) {}

  leave(keys: LockKeys, leaver: Leaver): Promise<Departure> {
    let group = this.groups.get(keys.full);
    if (!group) {
      const opened: Group = { keys, leavers: [], ends: [] };
      group = opened;
      this.groups.set(keys.full, opened);
      // The timers of this moment have run by then.
      setImmediate(() => this.close(opened));
    }
    const { leavers, ends } = group;
    leavers.push(leaver);
    const left = new Promise<Departure>((resolve, reject) => ends.push({ resolve, reject }));
    if (leavers.length === MOST_IDS) this.close(group);
    return left;
  }

  private close(group: Group): void {
    const { keys, leavers, ends } = group;
    // A full one was closed before its time.
    if (this.groups.get(keys.full) !== group) return;
    this.groups.delete(keys.full);
    this.transitions.leave(keys, leavers, 'take').then(
      ({ report, results }) => ends.forEach(({ resolve }, i) => resolve({ report, result: results[i] })),
      (error: unknown) => ends.forEach(({ reject }) => reject(error)),
    );
  }
}
