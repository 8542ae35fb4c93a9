import { oursAdapter } from '../lib/ours.mjs';

/** As a program uses it: no owner, so nothing is written to an index by execution. */
export default oursAdapter('ours', () => undefined);
